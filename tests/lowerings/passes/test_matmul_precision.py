"""Products of float32 and complex64 get the target's precision, unless they have a higher one."""

import pytest

from tests.lowerings.passes.rewriting import normalized, rewritten
from xla_dynamo.lowerings.passes.matmul_precision import set_matmul_precision
from xla_dynamo.lowerings.target import Target


def product(dtype="f32", precision=None):
    type_ = f"tensor<4x4x{dtype}>"
    said = f"precision = [{precision}, {precision}]" if precision else ""
    comma = ", " if said else ""
    return f"""
func.func public @main(%x: {type_}, %y: {type_}) -> {type_} {{
  %z = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0]{comma}{said}
    : ({type_}, {type_}) -> {type_}
  return %z : {type_}
}}
"""


@pytest.mark.parametrize(
    ("told", "written"), [("highest", "HIGHEST"), ("high", "HIGH"), ("medium", "DEFAULT")]
)
@pytest.mark.parametrize("dtype", ["f32", "complex<f32>"])
def test_products_say_what_torch_was_told(told, written, dtype):
    target = Target("cuda", matmul_precision=told)
    after = rewritten(set_matmul_precision, product(dtype), target)
    assert after == normalized(product(dtype, written))


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "complex<f64>", "i32"])
def test_other_dtypes_are_left(dtype):
    target = Target("cuda", matmul_precision="high")
    assert rewritten(set_matmul_precision, product(dtype), target) == normalized(product(dtype))


def test_a_higher_precision_is_left():
    text, target = product(precision="HIGHEST"), Target("cuda", matmul_precision="medium")
    assert rewritten(set_matmul_precision, text, target) == normalized(text)


def test_the_default_precision_is_none():
    """JAX writes it where its function asks for nothing."""
    after = rewritten(set_matmul_precision, product(precision="DEFAULT"), Target("cuda"))
    assert after == normalized(product(precision="HIGHEST"))


def test_products_in_other_functions_and_regions():
    type_ = "tensor<4x4xf32>"
    text = f"""
func.func public @main(%p: tensor<i1>, %x: {type_}) -> {type_} {{
  %z = "stablehlo.if"(%p) ({{
    %a = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({type_}, {type_}) -> {type_}
    stablehlo.return %a : {type_}
  }}, {{
    %b = func.call @other(%x) : ({type_}) -> {type_}
    stablehlo.return %b : {type_}
  }}) : (tensor<i1>) -> {type_}
  return %z : {type_}
}}
func.func private @other(%x: {type_}) -> {type_} {{
  %y = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : ({type_}, {type_}) -> {type_}
  return %y : {type_}
}}
"""
    after = rewritten(set_matmul_precision, text, Target("cuda"))
    assert after.count("precision = [HIGHEST, HIGHEST]") == 2
