"""Results that XLA or LLVM could combine with their users get a -0.0 added, an argument."""

import pytest

from tests.lowerings.passes.rewriting import CPU, GPU, normalized, parsed, rewritten
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.passes.contraction_barriers import insert_barriers, mark_results
from xla_dynamo.lowerings.passes.notes import Notes

# (x + 1e8) - 1e8, of two operators: the first result is marked.
SUMS = """
func.func public @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %big = stablehlo.constant dense<1.0e8> : tensor<4xf32>
  %sum = stablehlo.add %x, %big {xla_dynamo.result} : tensor<4xf32>
  %y = stablehlo.subtract %sum, %big {xla_dynamo.result} : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""


@pytest.mark.parametrize("target", [CPU, GPU])
def test_a_sum_of_a_sum_is_not_reassociated(target):
    """The last result has no user to be combined with, and no barrier."""
    after = """
func.func public @main(%x: tensor<4xf32>, %zero: tensor<f32>) -> tensor<4xf32>
    {
  %big = stablehlo.constant dense<1.0e8> : tensor<4xf32>
  %sum = stablehlo.add %x, %big : tensor<4xf32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %barrier = stablehlo.add %sum, %zeros : tensor<4xf32>
  %y = stablehlo.subtract %barrier, %big : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
    assert rewritten(insert_barriers, SUMS, target) == normalized(after)


def test_operations_of_one_operator_are_left():
    """Without a mark on the first it is no operator's result."""
    text = SUMS.replace("%big {xla_dynamo.result}", "%big", 1)
    without_marks = SUMS.replace(" {xla_dynamo.result}", "")
    assert rewritten(insert_barriers, text) == normalized(without_marks)


DIFFERENCE = """
func.func public @main(%x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>)
    -> tensor<4xf32> {
  %product = stablehlo.multiply %x, %y {xla_dynamo.result} : tensor<4xf32>
  %difference = stablehlo.subtract %z, %product {xla_dynamo.result} : tensor<4xf32>
  return %difference : tensor<4xf32>
}
"""


def test_a_product_and_a_sum_are_not_contracted_on_the_cpu():
    after = """
func.func public @main(
    %x: tensor<4xf32>, %y: tensor<4xf32>, %z: tensor<4xf32>, %zero: tensor<f32>
) -> tensor<4xf32> {
  %product = stablehlo.multiply %x, %y : tensor<4xf32>
  %zeros = stablehlo.broadcast_in_dim %zero, dims = [] : (tensor<f32>) -> tensor<4xf32>
  %barrier = stablehlo.add %product, %zeros : tensor<4xf32>
  %difference = stablehlo.subtract %z, %barrier : tensor<4xf32>
  return %difference : tensor<4xf32>
}
"""
    assert rewritten(insert_barriers, DIFFERENCE) == normalized(after)


def test_elsewhere_there_is_no_contraction():
    """XLA itself changes nothing here, as no number is known: the marks go, and nothing comes."""
    after = DIFFERENCE.replace(" {xla_dynamo.result}", "")
    assert rewritten(insert_barriers, DIFFERENCE, GPU) == normalized(after)


def test_a_view_between_them_is_looked_through():
    text = """
func.func public @main(%x: tensor<4x2xf32>) -> tensor<2x4xf32> {
  %big = stablehlo.constant dense<1.0e8> : tensor<4x2xf32>
  %also = stablehlo.constant dense<1.0e8> : tensor<2x4xf32>
  %sum = stablehlo.add %x, %big {xla_dynamo.result} : tensor<4x2xf32>
  %t = stablehlo.transpose %sum, dims = [1, 0] {xla_dynamo.result}
    : (tensor<4x2xf32>) -> tensor<2x4xf32>
  %y = stablehlo.subtract %t, %also {xla_dynamo.result} : tensor<2x4xf32>
  return %y : tensor<2x4xf32>
}
"""
    after = rewritten(insert_barriers, text)
    # Behind the sum, and not behind the transpose too.
    assert after.count("stablehlo.broadcast_in_dim") == 1
    assert after.index("stablehlo.broadcast_in_dim") < after.index("stablehlo.transpose")
    assert "xla_dynamo.result" not in after


def pair(inner, outer, dtype="f32"):
    """Two operators, each of x and, if it is binary, a constant."""
    unary = "abs exponential log sqrt rsqrt negate"
    body, x = "", "%x"
    for index, name in enumerate((inner, outer)):
        operands = x if name in unary.split() else f"{x}, %c"
        body += f"%y{index} = stablehlo.{name} {operands} {{xla_dynamo.result}} : tensor<4x{dtype}>"
        body, x = body + "\n", f"%y{index}"
    return f"""
func.func public @main(%x: tensor<4x{dtype}>) -> tensor<4x{dtype}> {{
  %c = stablehlo.constant dense<3.0> : tensor<4x{dtype}>
  {body}
  return {x} : tensor<4x{dtype}>
}}"""


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("multiply", "multiply"),  # (x * 3) * 3
        ("divide", "divide"),  # (x / 3) / 3
        ("exponential", "log"),  # log(exp(x))
        ("multiply", "sqrt"),  # sqrt(x * x) is |x|
        ("power", "log"),
        ("subtract", "add"),
        ("exponential", "power"),
    ],
)
def test_pairs_that_xla_combines(inner, outer):
    after = rewritten(insert_barriers, pair(inner, outer), GPU)
    assert "tensor<f32>) ->" in after.partition("func.func")[2].partition("{")[0]


@pytest.mark.parametrize(
    ("inner", "outer"),
    [
        ("add", "multiply"),  # (x + 3) * 3: XLA distributes nothing over floats
        ("maximum", "add"),
        ("log", "exponential"),
        ("abs", "sqrt"),
        ("divide", "maximum"),
    ],
)
def test_pairs_that_xla_leaves(inner, outer):
    text = pair(inner, outer)
    without_marks = text.replace(" {xla_dynamo.result}", "")
    assert rewritten(insert_barriers, text, GPU) == normalized(without_marks)


def test_zeros_have_the_type_of_the_result():
    after = rewritten(insert_barriers, pair("add", "subtract", "bf16"))
    assert "stablehlo.convert %arg1 : (tensor<f32>) -> tensor<bf16>" in after
    after = rewritten(
        insert_barriers, pair("add", "subtract", "complex<f64>").replace("<3.0>", "<(3.0, 0.0)>")
    )
    assert "stablehlo.convert %arg1 : (tensor<f32>) -> tensor<f64>" in after
    assert "stablehlo.complex" in after


def test_whole_numbers_have_no_barriers():
    """They are exact in any order; `mark_results` marks none."""
    text = (
        pair("add", "subtract", "i32").replace("<3.0>", "<3>").replace(" {xla_dynamo.result}", "")
    )
    with parsed(text) as module:
        add = main_of(module).entry_block.operations[1]
        mark_results(add.results[0])
        assert str(module) == normalized(text)


def test_marks_are_those_of_a_result_and_of_what_it_is_a_view_of():
    text = """
func.func public @main(%x: tensor<4x2xf32>) -> tensor<2x4xf32> {
  %e = stablehlo.exponential %x : tensor<4x2xf32>
  %p = stablehlo.multiply %e, %x : tensor<4x2xf32>
  %t = stablehlo.transpose %p, dims = [1, 0] : (tensor<4x2xf32>) -> tensor<2x4xf32>
  return %t : tensor<2x4xf32>
}
"""
    with parsed(text) as module:
        *_, last = main_of(module).entry_block.operations
        mark_results([last.operands[0], None, 3])  # a node's results may be no values
        marked = [line for line in str(module).splitlines() if "xla_dynamo.result" in line]
    product, view = marked
    assert "stablehlo.multiply" in product
    assert "stablehlo.transpose" in view


@pytest.mark.parametrize(("text", "taken"), [(SUMS, True), (pair("abs", "abs"), False)])
def test_the_argument_is_noted(text, taken):
    with parsed(text) as module:
        notes = insert_barriers(module, CPU)
        assert len(main_of(module).entry_block.arguments) == 1 + taken
        assert notes == (Notes(takes_negative_zero=True) if taken else None)
        assert "xla_dynamo" not in str(module)
