"""Conversions of weights and updates become calls of private functions that XLA does not inline."""

import pytest

from tests.lowerings.passes.rewriting import normalized, rewritten
from xla_dynamo.lowerings.passes import outline

NOT_INLINED = '{mhlo.frontend_attributes = {inlineable = "false"}}'


@pytest.fixture
def small(monkeypatch):
    """However few elements there are, they are enough."""
    monkeypatch.setattr(outline, "FEWEST", 1)


CONVERSION = """
func.func public @main(%w: tensor<4x2x3x3xf32>) -> tensor<4xbf16> {
  %narrow = stablehlo.convert %w : (tensor<4x2x3x3xf32>) -> tensor<4x2x3x3xbf16>
  %y = stablehlo.custom_call @kernel(%narrow) : (tensor<4x2x3x3xbf16>) -> tensor<4xbf16>
  return %y : tensor<4xbf16>
}
"""


def test_a_weight_is_converted_as_rows(small):
    """The rows are the first dimension; the function has the conversion, and main the reshapes."""
    after = f"""
func.func public @main(%w: tensor<4x2x3x3xf32>) -> tensor<4xbf16> {{
  %rows = stablehlo.reshape %w : (tensor<4x2x3x3xf32>) -> tensor<4x18xf32>
  %narrow = call @convert(%rows) {NOT_INLINED} : (tensor<4x18xf32>) -> tensor<4x18xbf16>
  %weight = stablehlo.reshape %narrow : (tensor<4x18xbf16>) -> tensor<4x2x3x3xbf16>
  %y = stablehlo.custom_call @kernel(%weight) : (tensor<4x2x3x3xbf16>) -> tensor<4xbf16>
  return %y : tensor<4xbf16>
}}
func.func private @convert(%rows: tensor<4x18xf32>) -> tensor<4x18xbf16> {{
  %narrow = stablehlo.convert %rows : (tensor<4x18xf32>) -> tensor<4x18xbf16>
  return %narrow : tensor<4x18xbf16>
}}
"""
    assert rewritten(outline.outline, CONVERSION) == normalized(after)


CONVERSIONS_LEFT = {
    "another user than a library call": """
func.func public @main(%w: tensor<4x2x3x3xf32>) -> (tensor<4xbf16>, tensor<4x2x3x3xbf16>) {
  %narrow = stablehlo.convert %w : (tensor<4x2x3x3xf32>) -> tensor<4x2x3x3xbf16>
  %y = stablehlo.custom_call @kernel(%narrow) : (tensor<4x2x3x3xbf16>) -> tensor<4xbf16>
  return %y, %narrow : tensor<4xbf16>, tensor<4x2x3x3xbf16>
}
""",
    "no argument": """
func.func public @main(%w: tensor<4x2x3x3xf32>) -> tensor<4xbf16> {
  %v = stablehlo.negate %w : tensor<4x2x3x3xf32>
  %narrow = stablehlo.convert %v : (tensor<4x2x3x3xf32>) -> tensor<4x2x3x3xbf16>
  %y = stablehlo.custom_call @kernel(%narrow) : (tensor<4x2x3x3xbf16>) -> tensor<4xbf16>
  return %y : tensor<4xbf16>
}
""",
    "a matrix": """
func.func public @main(%w: tensor<4x3xf32>) -> tensor<4xbf16> {
  %narrow = stablehlo.convert %w : (tensor<4x3xf32>) -> tensor<4x3xbf16>
  %y = stablehlo.custom_call @kernel(%narrow) : (tensor<4x3xbf16>) -> tensor<4xbf16>
  return %y : tensor<4xbf16>
}
""",
    "enough elements in the last dimension": """
func.func public @main(%w: tensor<4x2x16xf32>) -> tensor<4xbf16> {
  %narrow = stablehlo.convert %w : (tensor<4x2x16xf32>) -> tensor<4x2x16xbf16>
  %y = stablehlo.custom_call @kernel(%narrow) : (tensor<4x2x16xbf16>) -> tensor<4xbf16>
  return %y : tensor<4xbf16>
}
""",
}


@pytest.mark.parametrize("text", CONVERSIONS_LEFT.values(), ids=CONVERSIONS_LEFT)
def test_other_conversions_are_left(small, text):
    assert rewritten(outline.outline, text) == normalized(text)


def test_a_small_weight_is_left():
    assert rewritten(outline.outline, CONVERSION) == normalized(CONVERSION)


UPDATE = """
func.func public @main(%cache: tensor<8x4xf32>, %new: tensor<{rows}x4xf32>, %i: tensor<i64>)
    -> (tensor<8x4xf32>, tensor<8x4xf32>) {{
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %all = stablehlo.dynamic_update_slice %cache, %new, %i, %zero
    : (tensor<8x4xf32>, tensor<{rows}x4xf32>, tensor<i64>, tensor<i64>) -> tensor<8x4xf32>
  %y = stablehlo.tanh %{read} : tensor<8x4xf32>
  return %all, %y : tensor<8x4xf32>, tensor<8x4xf32>
}}
"""


def test_an_update_that_is_returned_and_read_is_outlined(small):
    after = f"""
func.func public @main(%cache: tensor<8x4xf32>, %new: tensor<2x4xf32>, %i: tensor<i64>)
    -> (tensor<8x4xf32>, tensor<8x4xf32>) {{
  %zero = stablehlo.constant dense<0> : tensor<i64>
  %all = call @dynamic_update_slice(%cache, %new, %i, %zero) {NOT_INLINED}
    : (tensor<8x4xf32>, tensor<2x4xf32>, tensor<i64>, tensor<i64>) -> tensor<8x4xf32>
  %y = stablehlo.tanh %all : tensor<8x4xf32>
  return %all, %y : tensor<8x4xf32>, tensor<8x4xf32>
}}
func.func private @dynamic_update_slice(
    %cache: tensor<8x4xf32>, %new: tensor<2x4xf32>, %i: tensor<i64>, %j: tensor<i64>
) -> tensor<8x4xf32> {{
  %all = stablehlo.dynamic_update_slice %cache, %new, %i, %j
    : (tensor<8x4xf32>, tensor<2x4xf32>, tensor<i64>, tensor<i64>) -> tensor<8x4xf32>
  return %all : tensor<8x4xf32>
}}
"""
    assert rewritten(outline.outline, UPDATE.format(rows=2, read="all")) == normalized(after)


@pytest.mark.parametrize(("rows", "read"), [(2, "cache"), (3, "all")])
def test_updates_of_one_user_and_of_large_parts_are_left(small, rows, read):
    """Of the second, more than a quarter of the array is written."""
    text = UPDATE.format(rows=rows, read=read)
    assert rewritten(outline.outline, text) == normalized(text)


def test_each_function_has_a_name_of_its_own(small):
    text = """
func.func public @main(%v: tensor<4x2x3xf32>, %w: tensor<4x2x3xf32>) -> tensor<4xbf16> {
  %a = stablehlo.convert %v : (tensor<4x2x3xf32>) -> tensor<4x2x3xbf16>
  %b = stablehlo.convert %w : (tensor<4x2x3xf32>) -> tensor<4x2x3xbf16>
  %y = stablehlo.custom_call @kernel(%a, %b)
    : (tensor<4x2x3xbf16>, tensor<4x2x3xbf16>) -> tensor<4xbf16>
  return %y : tensor<4xbf16>
}
"""
    after = rewritten(outline.outline, text)
    assert "call @convert(" in after
    assert "call @convert_0(" in after
    assert after.count("func.func private") == 2
