"""`combine_collectives`: collectives that do not wait for each other are one."""

import dataclasses

from tests.lowerings.passes.rewriting import CPU, rewritten
from xla_dynamo.lowerings.passes import combine_collectives as tested
from xla_dynamo.lowerings.passes.combine_collectives import combine_collectives
from xla_dynamo.lowerings.passes.reassociate_all_reduces import reassociate_all_reduces
from xla_dynamo.lowerings.passes.registered import passes_for

TWO = dataclasses.replace(CPU, replicas=(0, 1), over_processes=True)


def _sum(result, x, shape, body="add"):
    element = shape.rpartition("x")[2]
    return f"""
    {result} = "stablehlo.all_reduce"({x}) <{{
        replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{
    ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
      %s = stablehlo.{body} %a, %b : tensor<{element}>
      stablehlo.return %s : tensor<{element}>
    }}) : (tensor<{shape}>) -> tensor<{shape}>"""


MODULE = f"""
module {{
  func.func public @main(%x: tensor<4x2xf32>, %y: tensor<3xf32>, %z: tensor<5xf64>)
      -> (tensor<4x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<5xf64>, tensor<3xf32>) {{
    {_sum("%0", "%x", "4x2xf32")}
    %1 = stablehlo.negate %0 : tensor<4x2xf32>
    {_sum("%2", "%y", "3xf32")}
    %3 = stablehlo.negate %2 : tensor<3xf32>
    {_sum("%4", "%3", "3xf32")}
    {_sum("%5", "%z", "5xf64")}
    {_sum("%6", "%y", "3xf32", "maximum")}
    return %1, %3, %4, %5, %6 :
        tensor<4x2xf32>, tensor<3xf32>, tensor<3xf32>, tensor<5xf64>, tensor<3xf32>
  }}
}}
"""


def _shapes(text):
    lines = [line for line in text.splitlines() if line.lstrip().startswith("}) : (tensor")]
    return [line.split("tensor<")[-1].strip(">") for line in lines]


def test_what_does_not_wait_is_one():
    """The third waits for the second; others have another dtype, or reduce otherwise."""
    after = rewritten(combine_collectives, MODULE, TWO)
    assert _shapes(after) == ["11xf32", "5xf64", "3xf32", "3xf32"]


def test_buckets_hold_so_many_bytes(monkeypatch):
    monkeypatch.setattr(tested, "BUCKET", 43)
    assert _shapes(rewritten(combine_collectives, MODULE, TWO)) == _shapes(MODULE)


def test_sums_are_added_first():
    """The gradient of a value that three products read."""
    module = f"""
module {{
  func.func public @main(%x: tensor<3xf32>, %y: tensor<3xf32>, %z: tensor<3xf32>)
      -> (tensor<3xf32>, tensor<3xf32>) {{
    {_sum("%0", "%x", "3xf32")}
    {_sum("%1", "%y", "3xf32")}
    %2 = stablehlo.add %0, %1 : tensor<3xf32>
    %row = stablehlo.reshape %z : (tensor<3xf32>) -> tensor<1x3xf32>
    {_sum("%sum", "%row", "1x3xf32")}
    %3 = stablehlo.reshape %sum : (tensor<1x3xf32>) -> tensor<3xf32>
    %4 = stablehlo.add %3, %2 : tensor<3xf32>
    {_sum("%5", "%z", "3xf32", "maximum")}
    %6 = stablehlo.add %5, %4 : tensor<3xf32>
    return %4, %6 : tensor<3xf32>, tensor<3xf32>
  }}
}}
"""
    after = rewritten(reassociate_all_reduces, module, TWO)
    assert _shapes(after) == ["3xf32", "3xf32"]  # the maximum is no sum
    assert after.count("stablehlo.add %") == 2 + 1 + 1  # two sums, that of all-reduce, the last


def test_programs_of_one_process_have_no_such_passes():
    names = {"combine_collectives", "reassociate_all_reduces"}
    for target, wanted in ((CPU, set()), (TWO, names)):
        assert {p.name for p in passes_for(target)} & names == wanted
