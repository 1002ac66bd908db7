"""exp(x) is where(x != x, x, exp(x)) in modules in which XLA may know a NaN beforehand."""

import pytest

from tests.lowerings.passes.rewriting import normalized, rewritten
from xla_dynamo.lowerings.passes.guard_exponentials import guard_exponentials


def exponential(first, name="stablehlo.exponential", dtype="f32"):
    """A module with an exponential of an argument, behind other operations."""
    return f"""
func.func public @main(%x: tensor<{dtype}>) -> tensor<{dtype}> {{
  {first}
  %y = {name} %x : tensor<{dtype}>
  return %y : tensor<{dtype}>
}}"""


def constants(**numbers):
    return "\n".join(
        f"%{name} = stablehlo.constant dense<{number}> : tensor<f32>"
        for name, number in numbers.items()
    )


NAN, INFINITY = "0x7FC00000", "0x7F800000"


def test_an_exponential_is_guarded():
    before = exponential(constants(nan=NAN))
    after = f"""
func.func public @main(%x: tensor<f32>) -> tensor<f32> {{
  {constants(nan=NAN)}
  %is_nan = stablehlo.compare NE, %x, %x : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %exp = stablehlo.exponential %x : tensor<f32>
  %y = stablehlo.select %is_nan, %x, %exp : tensor<i1>, tensor<f32>
  return %y : tensor<f32>
}}"""
    assert rewritten(guard_exponentials, before) == normalized(after)


WITH_NAN = {
    "infinity and a sum": constants(inf=INFINITY) + "%s = stablehlo.add %x, %inf : tensor<f32>",
    "infinity, as another type": constants(inf=INFINITY)
    + """%wide = stablehlo.convert %inf : (tensor<f32>) -> tensor<f64>
         %d = stablehlo.subtract %wide, %wide : tensor<f64>""",
    "0 / 0": constants(zero="0.0") + "%q = stablehlo.divide %zero, %zero : tensor<f32>",
    "log(1 - 2)": constants(one="1.0", two="2.0")
    + """%minus = stablehlo.subtract %one, %two : tensor<f32>
         %log = stablehlo.log %minus : tensor<f32>""",
    "an array of a type that is not read": "%c = stablehlo.constant dense<[1.0, 2.0]>"
    " : tensor<2xbf16>",
}


@pytest.mark.parametrize("name", ["exponential", "exponential_minus_one", "logistic"])
@pytest.mark.parametrize("first", WITH_NAN.values(), ids=WITH_NAN)
def test_modules_that_may_know_a_nan(first, name):
    after = rewritten(guard_exponentials, exponential(first, f"stablehlo.{name}"))
    assert after.index("compare NE") < after.index(f"stablehlo.{name}") < after.index("select")


@pytest.mark.parametrize("name", ["chlo.sinh", "chlo.cosh"])
def test_what_becomes_exponentials(name):
    text = exponential(constants(nan=NAN), name).replace(
        f"{name} %x : tensor<f32>", f"{name} %x : tensor<f32> -> tensor<f32>"
    )
    assert "stablehlo.select" in rewritten(guard_exponentials, text)


WITHOUT_NAN = {
    "numbers": constants(one="1.0") + "%s = stablehlo.add %x, %one : tensor<f32>",
    # The identity of a maximum, and what a mask puts in: nothing is computed of it.
    "infinity alone": constants(inf=INFINITY) + "%m = stablehlo.maximum %x, %inf : tensor<f32>",
    "a quotient that XLA does not know": constants(zero="0.0")
    + "%q = stablehlo.divide %x, %zero : tensor<f32>",
    "whole numbers": "%c = stablehlo.constant dense<0> : tensor<i32>"
    " %q = stablehlo.divide %c, %c : tensor<i32>",
}


@pytest.mark.parametrize("first", WITHOUT_NAN.values(), ids=WITHOUT_NAN)
def test_other_modules_are_left(first):
    text = exponential(first)
    assert rewritten(guard_exponentials, text) == normalized(text)


def test_complex_exponentials_are_left():
    text = exponential(constants(nan=NAN), dtype="complex<f32>")
    assert rewritten(guard_exponentials, text) == normalized(text)
