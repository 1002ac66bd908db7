"""A large reduction becomes several that XLA:CPU vectorizes; the thresholds are the real ones."""

import pytest

from tests.lowerings.passes.rewriting import normalized, operations, rewritten
from xla_dynamo.lowerings.passes.split_reductions import split_reductions


def module(body, given, result):
    """A function of %x, with a body that makes %y."""
    return f"""
func.func public @main(%x: tensor<{given}>) -> tensor<{result}> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  {body}
  return %y : tensor<{result}>
}}
"""


def reduction(shape, dims, result, kind="add", x="%x"):
    return (
        f"%y = stablehlo.reduce({x} init: %zero) applies stablehlo.{kind} across dimensions ="
        f" {dims} : (tensor<{shape}>, tensor<f32>) -> tensor<{result}>"
    )


def test_columns_are_reduced_sixteen_rows_at_a_time():
    """64 rows are 4 times 16; one window makes 1 of the 4, and the reduction itself is the last."""
    before = module(reduction("64x100xf32", [0], "100xf32"), "64x100xf32", "100xf32")
    after = """
func.func public @main(%x: tensor<64x100xf32>) -> tensor<100xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %split = stablehlo.reshape %x : (tensor<64x100xf32>) -> tensor<4x16x100xf32>
  %first = stablehlo.constant dense<0.0> : tensor<f32>
  %some = stablehlo.reduce(%split init: %first) applies stablehlo.add across dimensions = [1]
    : (tensor<4x16x100xf32>, tensor<f32>) -> tensor<4x100xf32>
  %second = stablehlo.constant dense<0.0> : tensor<f32>
  %one = "stablehlo.reduce_window"(%some, %second) <{
    padding = dense<0> : tensor<2x2xi64>, window_dilations = array<i64: 1, 1>,
    window_dimensions = array<i64: 4, 1>, window_strides = array<i64: 4, 1>
  }> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %sum = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %sum : tensor<f32>
  }) : (tensor<4x100xf32>, tensor<f32>) -> tensor<1x100xf32>
  %y = stablehlo.reduce(%one init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<1x100xf32>, tensor<f32>) -> tensor<100xf32>
  return %y : tensor<100xf32>
}
"""
    assert rewritten(split_reductions, before) == normalized(after)


def steps(text):
    """The types that an array goes through, without constants and the sums within reductions."""
    found = operations(rewritten(split_reductions, text))
    return [name for name in found if name.split()[0] not in ("constant", "add")]


def test_a_long_row_is_split():
    """10,000 is more than twice 2048, of whose divisors 2000 is the largest up to that."""
    text = module(reduction("3x10000xf32", [1], "3xf32"), "3x10000xf32", "3xf32")
    assert steps(text)[:2] == ["reshape 3x5x2000xf32", "reduce 3x5xf32"]
    assert steps(text)[-1] == "reduce 3xf32"


def test_a_row_without_a_divisor_is_padded():
    """4099 is a prime: twice 2048 is not enough, and so 3 times."""
    text = module(reduction("4099xf32", [0], "f32"), "4099xf32", "f32")
    assert steps(text)[:3] == ["pad 6144xf32", "reshape 3x2048xf32", "reduce 3xf32"]


def test_inner_dimensions_are_merged():
    """XLA reduces one innermost dimension by vectors; the barrier keeps it from splitting it."""
    text = module(reduction("8x40x20xf32", [1, 2], "8xf32"), "8x40x20xf32", "8xf32")
    assert steps(text) == [
        "reshape 8x800xf32",
        "optimization_barrier 8x800xf32",
        "reduce 8xf32",
    ]


def test_a_transpose_before_it_is_not_computed():
    """Rows of the transpose are columns of its source, which are reduced some rows at a time."""
    transpose = (
        "%t = stablehlo.transpose %x, dims = [1, 0]"
        " : (tensor<64x100xf32>) -> tensor<100x64xf32>\n  "
    )
    body = transpose + reduction("100x64xf32", [1], "100xf32", x="%t")
    found = steps(module(body, "64x100xf32", "100xf32"))
    assert found[1:3] == ["reshape 4x16x100xf32", "reduce 4x100xf32"]


def by_region(*lines):
    """A reduction of 64 rows by operations of its own, which make %all of %a and %b."""
    body = "\n".join(lines)
    return f"""%y = stablehlo.reduce(%x init: %zero) across dimensions = [0]
    : (tensor<64x100xf32>, tensor<f32>) -> tensor<100xf32>
    reducer(%a: tensor<f32>, %b: tensor<f32>) {{
      {body}
      stablehlo.return %all : tensor<f32>
    }}"""


LEFT = {
    "few elements": module(reduction("40x100xf32", [0], "100xf32"), "40x100xf32", "100xf32"),
    "a row that one loop reduces": module(
        reduction("4x4096xf32", [1], "4xf32"), "4x4096xf32", "4xf32"
    ),
    "few rows": module(reduction("32x1000xf32", [0], "1000xf32"), "32x1000xf32", "1000xf32"),
    "another operation": module(
        by_region("%all = stablehlo.power %a, %b : tensor<f32>"), "64x100xf32", "100xf32"
    ),
    "two operations": module(
        by_region(
            "%sum = stablehlo.add %a, %b : tensor<f32>",
            "%all = stablehlo.tanh %sum : tensor<f32>",
        ),
        "64x100xf32",
        "100xf32",
    ),
    "two arrays": module(
        """%y, %z = stablehlo.reduce(%x init: %zero), (%x init: %zero) across dimensions = [0]
    : (tensor<64x100xf32>, tensor<64x100xf32>, tensor<f32>, tensor<f32>)
    -> (tensor<100xf32>, tensor<100xf32>)
    reducer(%a: tensor<f32>, %b: tensor<f32>) (%c: tensor<f32>, %d: tensor<f32>) {
      stablehlo.return %b, %c : tensor<f32>, tensor<f32>
    }""",
        "64x100xf32",
        "100xf32",
    ),
}


@pytest.mark.parametrize("text", LEFT.values(), ids=LEFT)
def test_other_reductions_are_left(text):
    assert rewritten(split_reductions, text) == normalized(text)
