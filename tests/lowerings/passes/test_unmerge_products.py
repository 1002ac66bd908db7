"""Reshapes that merge dimensions move through products until they meet those that split them."""

import pytest

from tests.lowerings.passes.rewriting import normalized, operations, rewritten
from xla_dynamo.lowerings.passes.unmerge_products import unmerge_products
from xla_dynamo.lowerings.target import Target

TARGET = Target("cpu", partitions=8)


def function(arguments, *body, result="%y", type_):
    """A function of arguments, given with their shapes, whose body makes its result."""
    taken = ", ".join(f"%{name}: tensor<{shape}xf32>" for name, shape in arguments.items())
    lines = "\n  ".join(body)
    return f"""
func.func public @main({taken}) -> tensor<{type_}xf32> {{
  {lines}
  return {result} : tensor<{type_}xf32>
}}
"""


def reshape(to, x, old, new):
    return f"%{to} = stablehlo.reshape %{x} : (tensor<{old}xf32>) -> tensor<{new}xf32>"


def product(to, x, y, shapes, contracting, batching=None, more=""):
    """A product of two values; the shapes are those of the factors and of the result."""
    a, b, c = (f"tensor<{shape}xf32>" for shape in shapes)
    stack = f"batching_dims = {batching}, " if batching else ""
    return (
        f"%{to} = stablehlo.dot_general %{x}, %{y}, {stack}contracting_dims = {contracting}{more}"
        f" : ({a}, {b}) -> {c}"
    )


def after(text):
    return rewritten(unmerge_products, text, TARGET)


def steps(text):
    """The operations after the pass, with the types of their results."""
    return operations(after(text))


def test_two_layers_compute_on_batch_and_sequence():
    """The attributes stay, the biases are broadcast anew, and no reshape is left."""
    precise = ", precision = [HIGHEST, HIGHEST]"
    first = product("p", "m", "w", ("10x4", "6x4", "10x6"), "[1] x [1]", more=precise)
    second = product("q", "a", "v", ("10x6", "4x6", "10x4"), "[1] x [1]")
    before = function(
        {"x": "2x5x4", "w": "6x4", "b": "6", "v": "4x6", "c": "4"},
        reshape("m", "x", "2x5x4", "10x4"),
        first,
        "%bias = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<6xf32>) -> tensor<10x6xf32>",
        "%s = stablehlo.add %p, %bias : tensor<10x6xf32>",
        "%half = stablehlo.constant dense<0.5> : tensor<10x6xf32>",
        "%t = stablehlo.multiply %s, %half : tensor<10x6xf32>",
        "%a = stablehlo.tanh %t : tensor<10x6xf32>",
        second,
        "%more = stablehlo.broadcast_in_dim %c, dims = [1] : (tensor<4xf32>) -> tensor<10x4xf32>",
        "%z = stablehlo.add %q, %more : tensor<10x4xf32>",
        reshape("y", "z", "10x4", "2x5x4"),
        type_="2x5x4",
    )
    expected = function(
        {"x": "2x5x4", "w": "6x4", "b": "6", "v": "4x6", "c": "4"},
        product("p", "x", "w", ("2x5x4", "6x4", "2x5x6"), "[2] x [1]", more=precise),
        "%bias = stablehlo.broadcast_in_dim %b, dims = [2] : (tensor<6xf32>) -> tensor<2x5x6xf32>",
        "%s = stablehlo.add %p, %bias : tensor<2x5x6xf32>",
        "%half = stablehlo.constant dense<0.5> : tensor<2x5x6xf32>",
        "%t = stablehlo.multiply %s, %half : tensor<2x5x6xf32>",
        "%a = stablehlo.tanh %t : tensor<2x5x6xf32>",
        product("q", "a", "v", ("2x5x6", "4x6", "2x5x4"), "[2] x [1]"),
        "%more = stablehlo.broadcast_in_dim %c, dims = [2] : (tensor<4xf32>) -> tensor<2x5x4xf32>",
        "%y = stablehlo.add %q, %more : tensor<2x5x4xf32>",
        type_="2x5x4",
    )
    assert after(before) == normalized(expected)


def test_a_weight_gradient_sums_over_both_dimensions():
    before = function(
        {"g": "2x5x6", "x": "2x5x4"},
        reshape("gm", "g", "2x5x6", "10x6"),
        reshape("xm", "x", "2x5x4", "10x4"),
        product("y", "gm", "xm", ("10x6", "10x4", "6x4"), "[0] x [0]"),
        type_="6x4",
    )
    expected = function(
        {"g": "2x5x6", "x": "2x5x4"},
        product("y", "g", "x", ("2x5x6", "2x5x4", "6x4"), "[0, 1] x [0, 1]"),
        type_="6x4",
    )
    assert after(before) == normalized(expected)


def test_rows_of_the_other_factor_are_split():
    """The gradient of a weight reads what the forward program left as a matrix."""
    text = function(
        {"g": "2x5x6", "x": "10x4"},
        reshape("gm", "g", "2x5x6", "10x6"),
        product("y", "gm", "x", ("10x6", "10x4", "6x4"), "[0] x [0]"),
        type_="6x4",
    )
    assert steps(text) == ["reshape 2x5x4xf32", "dot_general 6x4xf32"]


def test_a_weight_is_not_split():
    """Heads are merged, which the weight contracts: batch and sequence alone are split."""
    text = function(
        {"x": "2x5x3x4", "w": "6x12"},
        reshape("m", "x", "2x5x3x4", "10x12"),
        product("p", "m", "w", ("10x12", "6x12", "10x6"), "[1] x [1]"),
        reshape("y", "p", "10x6", "2x5x6"),
        type_="2x5x6",
    )
    assert steps(text) == ["reshape 2x5x12xf32", "dot_general 2x5x6xf32"]


ATTENTION = (
    {"q": "2x3x5x4", "k": "2x3x5x4", "v": "2x3x5x4"},
    *(reshape(f"{x}m", x, "2x3x5x4", "6x5x4") for x in "qkv"),
    product("scores", "qm", "km", ("6x5x4", "6x5x4", "6x5x5"), "[2] x [2]", "[0] x [0]"),
    "%low = stablehlo.constant dense<0xFF800000> : tensor<f32>",
    "%row = stablehlo.iota dim = 1 : tensor<6x5x5xi32>",
    "%column = stablehlo.iota dim = 2 : tensor<6x5x5xi32>",
    "%sees = stablehlo.compare GE, %row, %column"
    " : (tensor<6x5x5xi32>, tensor<6x5x5xi32>) -> tensor<6x5x5xi1>",
    "%lows = stablehlo.broadcast_in_dim %low, dims = [] : (tensor<f32>) -> tensor<6x5x5xf32>",
    "%seen = stablehlo.select %sees, %scores, %lows : tensor<6x5x5xi1>, tensor<6x5x5xf32>",
    "%peak = stablehlo.reduce(%seen init: %low) applies stablehlo.maximum across dimensions = [2]"
    " : (tensor<6x5x5xf32>, tensor<f32>) -> tensor<6x5xf32>",
    "%peaks = stablehlo.broadcast_in_dim %peak, dims = [0, 1]"
    " : (tensor<6x5xf32>) -> tensor<6x5x5xf32>",
    "%less = stablehlo.subtract %seen, %peaks : tensor<6x5x5xf32>",
    "%weights = stablehlo.exponential %less : tensor<6x5x5xf32>",
)


def test_attention_computes_on_batch_and_heads():
    """The mask that all share is compared anew, and the maxima are broadcast anew."""
    text = function(
        *ATTENTION,
        product("p", "weights", "vm", ("6x5x5", "6x5x4", "6x5x4"), "[2] x [1]", "[0] x [0]"),
        reshape("y", "p", "6x5x4", "2x3x5x4"),
        type_="2x3x5x4",
    )
    assert "reshape" not in after(text)
    assert not [step for step in steps(text) if " 6x" in step]


def test_a_saved_stack_is_split():
    """As in the gradient of attention, where the weights come from the forward program."""
    arguments = {**ATTENTION[0], "saved": "6x5x5"}
    text = function(
        arguments,
        *ATTENTION[1:],
        "%scaled = stablehlo.multiply %weights, %saved : tensor<6x5x5xf32>",
        product("p", "saved", "vm", ("6x5x5", "6x5x4", "6x5x4"), "[2] x [1]", "[0] x [0]"),
        product("r", "scaled", "p", ("6x5x5", "6x5x4", "6x5x4"), "[2] x [1]", "[0] x [0]"),
        reshape("y", "r", "6x5x4", "2x3x5x4"),
        type_="2x3x5x4",
    )
    assert [step for step in steps(text) if "reshape" in step] == ["reshape 2x3x5x5xf32"]


def test_merged_columns_meet_no_parameter():
    """The gradient of a projection to heads, and an optimizer's step: the state is not split."""
    text = function(
        {"g": "2x5x3x4", "x": "2x5x6", "state": "12x6"},
        reshape("gm", "g", "2x5x3x4", "10x12"),
        reshape("xm", "x", "2x5x6", "10x6"),
        product("p", "gm", "xm", ("10x12", "10x6", "12x6"), "[0] x [0]"),
        "%y = stablehlo.add %p, %state : tensor<12x6xf32>",
        type_="12x6",
    )
    assert steps(text) == ["dot_general 3x4x6xf32", "reshape 12x6xf32", "add 12x6xf32"]


def test_heads_that_are_only_repeated_stay_merged():
    text = function(
        {"q": "2x6x5x4", "k": "2x3x5x4"},
        "%wide = stablehlo.broadcast_in_dim %k, dims = [0, 1, 3, 4]"
        " : (tensor<2x3x5x4xf32>) -> tensor<2x3x2x5x4xf32>",
        reshape("m", "wide", "2x3x2x5x4", "2x6x5x4"),
        product("y", "q", "m", ("2x6x5x4", "2x6x5x4", "2x6x5x5"), "[3] x [3]", "[0, 1] x [0, 1]"),
        type_="2x6x5x5",
    )
    assert after(text) == normalized(text)


def test_what_other_operations_read_stays():
    """`reverse` has no rule: it reads the merged matrix, and the product does not."""
    before = function(
        {"x": "2x5x4", "w": "4x4"},
        reshape("m", "x", "2x5x4", "10x4"),
        product("p", "m", "w", ("10x4", "4x4", "10x4"), "[1] x [0]"),
        "%s = stablehlo.reverse %m, dims = [0] : tensor<10x4xf32>",
        "%y = stablehlo.add %p, %s : tensor<10x4xf32>",
        type_="10x4",
    )
    assert steps(before) == [
        "reshape 10x4xf32",
        "dot_general 2x5x4xf32",
        "reshape 10x4xf32",
        "reverse 10x4xf32",
        "add 10x4xf32",
    ]


def test_sizes_of_one_are_no_merge():
    """Decoding, one token at a time; but between two others a size of 1 is passed over."""
    text = function(
        {"x": "2x1x4", "w": "4x6"},
        reshape("m", "x", "2x1x4", "2x4"),
        product("y", "m", "w", ("2x4", "4x6", "2x6"), "[1] x [0]"),
        type_="2x6",
    )
    assert after(text) == normalized(text)
    text = function(
        {"x": "2x1x5x4", "w": "4x6"},
        reshape("m", "x", "2x1x5x4", "10x4"),
        product("p", "m", "w", ("10x4", "4x6", "10x6"), "[1] x [0]"),
        reshape("y", "p", "10x6", "2x1x5x6"),
        type_="2x1x5x6",
    )
    assert steps(text) == ["reshape 2x5x4xf32", "dot_general 2x5x6xf32", "reshape 2x1x5x6xf32"]


def test_a_reshape_without_elements_is_left():
    text = function(
        {"x": "0x5x4", "w": "4x6"},
        reshape("m", "x", "0x5x4", "0x4"),
        product("y", "m", "w", ("0x4", "4x6", "0x6"), "[1] x [0]"),
        type_="0x6",
    )
    assert after(text) == normalized(text)


def test_splits_that_cross_are_left():
    """Of [4, 6] as [3, 8] no dimension of one is made of dimensions of the other."""
    text = function(
        {"x": "4x6", "w": "8x2"},
        reshape("m", "x", "4x6", "3x8"),
        product("y", "m", "w", ("3x8", "8x2", "3x2"), "[1] x [0]"),
        type_="3x2",
    )
    assert after(text) == normalized(text)


def test_factors_that_disagree_are_contracted_merged():
    text = function(
        {"g": "2x6x3", "x": "3x4x5"},
        reshape("gm", "g", "2x6x3", "12x3"),
        reshape("xm", "x", "3x4x5", "12x5"),
        product("y", "gm", "xm", ("12x3", "12x5", "3x5"), "[0] x [0]"),
        type_="3x5",
    )
    assert after(text) == normalized(text)


def test_bodies_of_loops_are_rewritten():
    body = "\n".join(
        [
            reshape("m", "a", "2x5x4", "10x4"),
            product("p", "m", "w", ("10x4", "4x4", "10x4"), "[1] x [0]"),
            reshape("n", "p", "10x4", "2x5x4"),
        ]
    )
    loop = f"""%i = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%j = %i, %a = %x) : tensor<i32>, tensor<2x5x4xf32>
  cond {{
    %more = stablehlo.compare LT, %j, %j : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  }} do {{
    {body}
    stablehlo.return %j, %n : tensor<i32>, tensor<2x5x4xf32>
  }}"""
    text = function({"x": "2x5x4", "w": "4x4"}, loop, result="%r#1", type_="2x5x4")
    assert "reshape" not in after(text)


@pytest.mark.parametrize(("number", "type_"), [("1.0", "bf16"), ("3", "ui8"), ("true", "i1")])
def test_constants_are_written_anew(number, type_):
    before = f"""
func.func public @main(%x: tensor<2x5x{type_}>) -> tensor<2x5x{type_}> {{
  %m = stablehlo.reshape %x : (tensor<2x5x{type_}>) -> tensor<10x{type_}>
  %c = stablehlo.constant dense<{number}> : tensor<10x{type_}>
  %a = stablehlo.add %m, %c : tensor<10x{type_}>
  %y = stablehlo.reshape %a : (tensor<10x{type_}>) -> tensor<2x5x{type_}>
  return %y : tensor<2x5x{type_}>
}}
"""
    assert steps(before) == [f"constant 2x5x{type_}", f"add 2x5x{type_}"]


def test_a_complex_constant_is_left():
    """MLIR's Python does not read it."""
    text = """
func.func public @main(%x: tensor<2x5xcomplex<f32>>) -> tensor<10xcomplex<f32>> {
  %m = stablehlo.reshape %x : (tensor<2x5xcomplex<f32>>) -> tensor<10xcomplex<f32>>
  %c = stablehlo.constant dense<(1.0,2.0)> : tensor<10xcomplex<f32>>
  %y = stablehlo.add %m, %c : tensor<10xcomplex<f32>>
  return %y : tensor<10xcomplex<f32>>
}
"""
    assert after(text) == normalized(text)
