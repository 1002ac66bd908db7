"""What several kernels, or several elements of one, would recompute goes through a function."""

import random

import pytest

from tests.lowerings.passes.rewriting import normalized, operations, rewritten
from xla_dynamo.lowerings.passes import materialize
from xla_dynamo.lowerings.passes.post_dominators import PostDominatorTree


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """64 elements are not few."""
    monkeypatch.setattr(materialize, "FEW", 64)


def check_left(text):
    assert rewritten(materialize.materialize, text) == normalized(text)


TWO_REDUCTIONS = """
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>)
    -> (tensor<8xf32>, tensor<8xf32>) {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = {sum}
  %columns = stablehlo.reduce(%sum init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  %rows = stablehlo.reduce(%{second} init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %columns, %rows : tensor<8xf32>, tensor<8xf32>
}}
"""
SUM = "stablehlo.add %a, %b : tensor<8x8xf32>"


def test_a_sum_of_two_arrays_is_materialized_for_two_reductions():
    """Each would read both arrays; instead, each reads the one that the function returns."""
    after = """
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>)
    -> (tensor<8xf32>, tensor<8xf32>) {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.add %a, %b : tensor<8x8xf32>
  %once = call @once(%sum) {mhlo.frontend_attributes = {inlineable = "false"}}
    : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %columns = stablehlo.reduce(%once init: %zero) applies stablehlo.add across dimensions = [0]
    : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  %rows = stablehlo.reduce(%once init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %columns, %rows : tensor<8xf32>, tensor<8xf32>
}
func.func private @once(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
"""
    before = TWO_REDUCTIONS.format(sum=SUM, second="sum")
    assert rewritten(materialize.materialize, before) == normalized(after)


def chain_of_normalizations(count):
    """Each step takes the sums over rows of the step before, and is computed from one array."""
    lines = ["%x0 = stablehlo.negate %a : tensor<8x8xf32>"]
    for n in range(count):
        lines += [
            f"%sum{n} = stablehlo.reduce(%x{n} init: %zero) applies stablehlo.add across "
            "dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>",
            f"%wide{n} = stablehlo.broadcast_in_dim %sum{n}, dims = [1] "
            ": (tensor<8xf32>) -> tensor<8x8xf32>",
            f"%x{n + 1} = stablehlo.subtract %x{n}, %wide{n} : tensor<8x8xf32>",
        ]
    body = "\n".join(lines)
    return f"""
func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  {body}
  return %x{count} : tensor<8x8xf32>
}}
"""


def test_a_long_chain_of_reduced_values_is_cut():
    """Else the n-th reduction would compute n steps; so each computes a few, whatever n is."""
    most = materialize.MOST_OPERATIONS_IN_A_ROW
    check_left(chain_of_normalizations(most - 1))
    for count in (2, 4):
        after = rewritten(materialize.materialize, chain_of_normalizations(count * most))
        assert after.count("call @once") == pytest.approx(count, abs=1)


def test_a_value_of_one_array_is_recomputed():
    """The kernels would read one array with the value as without it."""
    check_left(TWO_REDUCTIONS.format(sum="stablehlo.tanh %a : tensor<8x8xf32>", second="sum"))


def test_a_value_of_one_kernel_is_fused():
    check_left(TWO_REDUCTIONS.format(sum=SUM, second="a"))


def test_few_elements_may_be_of_four_arrays(monkeypatch):
    monkeypatch.setattr(materialize, "FEW", 65)
    check_left(TWO_REDUCTIONS.format(sum=SUM, second="sum"))


def test_users_that_all_feed_one_operation_are_one_kernel():
    """The multiplication post-dominates the sum, which so is fused there."""
    check_left("""
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.add %a, %b : tensor<8x8xf32>
  %root = stablehlo.tanh %sum : tensor<8x8xf32>
  %product = stablehlo.multiply %sum, %root : tensor<8x8xf32>
  %rows = stablehlo.reduce(%product init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %rows : tensor<8xf32>
}
""")


def test_what_is_not_fused_reads_an_array_already():
    """Two products read the sum, for which XLA has a kernel without being told."""
    check_left("""
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>)
    -> (tensor<8x8xf32>, tensor<8x8xf32>) {
  %sum = stablehlo.add %a, %b : tensor<8x8xf32>
  %x = stablehlo.dot_general %sum, %a, contracting_dims = [1] x [0]
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %y = stablehlo.dot_general %b, %sum, contracting_dims = [1] x [0]
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %x, %y : tensor<8x8xf32>, tensor<8x8xf32>
}
""")


def test_an_unused_user_is_no_user():
    """A value that nothing uses is computed nowhere, so one kernel is left."""
    check_left("""
func.func public @main(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>) -> tensor<8xf32> {
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %sum = stablehlo.add %a, %b : tensor<8x8xf32>
  %unused = stablehlo.tanh %sum : tensor<8x8xf32>
  %rows = stablehlo.reduce(%sum init: %zero) applies stablehlo.add across dimensions = [1]
    : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
  return %rows : tensor<8xf32>
}
""")


def stencil(length):
    """Twice: so many operations, and the sum of the result and its reverse."""
    lines, x = [], "%a"
    for step in range(2):
        for number in range(length):
            lines.append(f"%x{step}_{number} = stablehlo.tanh {x} : tensor<8x8xf32>")
            x = f"%x{step}_{number}"
        lines.append(f"%back{step} = stablehlo.reverse {x}, dims = [0] : tensor<8x8xf32>")
        lines.append(f"%both{step} = stablehlo.add {x}, %back{step} : tensor<8x8xf32>")
        x = f"%both{step}"
    body = "\n".join(lines)
    return (
        "func.func public @main(%a: tensor<8x8xf32>) -> tensor<8x8xf32> {"
        f"{body}\nreturn {x} : tensor<8x8xf32>\n}}"
    )


def test_much_work_is_materialized_where_it_is_needed_at_several_indices():
    """Two operations may be recomputed at the other index; 33 are too many."""
    check_left(stencil(2))
    found = operations(rewritten(materialize.materialize, stencil(33)))
    calls = [number for number, name in enumerate(found) if name.startswith("call @once")]
    reverses = [number for number, name in enumerate(found) if name.startswith("reverse")]
    assert len(calls) == len(reverses) == 2
    assert all(call + 1 == reverse for call, reverse in zip(calls, reverses, strict=True))


def test_common_ancestors():
    """Those of a random tree, as following the parents finds them."""
    draw = random.Random(0)
    tree = PostDominatorTree(0)
    for node in range(1, 200):
        tree.add(node, draw.randrange(max(node - 10, 0), node), node % 2)

    def path(node):
        return [node] if node == 0 else [node, *path(tree.parents[node])]

    for _ in range(500):
        one, other = draw.randrange(200), draw.randrange(200)
        expected = next(node for node in path(one) if node in set(path(other)))
        assert tree.common_ancestor(one, other) == expected
        assert tree.weights[one] == sum(node % 2 for node in path(one))
