"""Transposes between library calls on images move through their users until they meet."""

import pytest

from tests.lowerings.passes.rewriting import normalized, operations, rewritten
from xla_dynamo.lowerings.passes.channels_last import put_channels_last

IMAGE, LAST = "tensor<2x8x4x6xf32>", "tensor<2x4x6x8xf32>"
CONVOLUTION = (
    '%{to} = stablehlo.custom_call @__onednn$convolution(%{x}) {{backend_config = "{{}}"}}'
    f" : ({LAST}) -> {LAST}"
)
TO_LAST = f"dims = [0, 2, 3, 1] : ({IMAGE}) -> {LAST}"
TO_FIRST = f"dims = [0, 3, 1, 2] : ({LAST}) -> {IMAGE}"


def between(body, result="%y", type_=IMAGE, call=CONVOLUTION):
    """A convolution of an image, then a body that has %x as [batch, channels, *spatial]."""
    return f"""
func.func public @main(%in: {LAST}, %other: {IMAGE}) -> {type_} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  {call.format(to="c", x="in")}
  %x = stablehlo.transpose %c, {TO_FIRST}
  {body}
  return {result} : {type_}
}}
"""


AGAIN = f"%last = stablehlo.transpose %y, {TO_LAST}\n  {CONVOLUTION.format(to='d', x='last')}"


def test_elementwise_operations_compute_on_the_channels_last():
    """The two transposes cancel, and the operand that comes otherwise is transposed."""
    before = between(f"%y = stablehlo.add %x, %other : {IMAGE}\n  {AGAIN}", "%d", LAST)
    after = f"""
func.func public @main(%in: {LAST}, %other: {IMAGE}) -> {LAST} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  {CONVOLUTION.format(to="c", x="in")}
  %turned = stablehlo.transpose %other, {TO_LAST}
  %y = stablehlo.add %c, %turned : {LAST}
  {CONVOLUTION.format(to="d", x="y")}
  return %d : {LAST}
}}
"""
    assert rewritten(put_channels_last, before) == normalized(after)


def test_a_reduction_finds_its_dimensions():
    """Means over the spatial dimensions: 2 and 3 of the image are 1 and 2 of what is computed."""
    small = "tensor<2x8xf32>"
    reduce = "stablehlo.reduce({x} init: %zero) applies stablehlo.add across dimensions = [{dims}]"
    before = between(
        f"%y = {reduce.format(x='%x', dims='2, 3')} : ({IMAGE}, tensor<f32>) -> {small}",
        type_=small,
    )
    after = f"""
func.func public @main(%in: {LAST}, %other: {IMAGE}) -> {small} {{
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  {CONVOLUTION.format(to="c", x="in")}
  %y = {reduce.format(x="%c", dims="1, 2")} : ({LAST}, tensor<f32>) -> {small}
  return %y : {small}
}}
"""
    assert rewritten(put_channels_last, before) == normalized(after)


BODIES = {
    # Halves of the channels, which are dimension 3 of what is computed.
    "slice": (
        f"%y = stablehlo.slice %x [0:2, 0:4, 0:4, 0:6] : ({IMAGE}) -> tensor<2x4x4x6xf32>",
        "tensor<2x4x4x6xf32>",
        ["slice 2x4x6x4xf32", "transpose 2x4x4x6xf32"],
    ),
    "concatenate": (
        f"%y = stablehlo.concatenate %x, %x, dim = 1 : ({IMAGE}, {IMAGE}) -> tensor<2x16x4x6xf32>",
        "tensor<2x16x4x6xf32>",
        ["concatenate 2x4x6x16xf32", "transpose 2x16x4x6xf32"],
    ),
    # Tokens: the spatial dimensions are merged, which are neighbours in what is computed too.
    "reshape": (
        f"%y = stablehlo.reshape %x : ({IMAGE}) -> tensor<2x8x24xf32>",
        "tensor<2x8x24xf32>",
        ["reshape 2x24x8xf32", "transpose 2x8x24xf32"],
    ),
    "reverse": (
        f"%y = stablehlo.reverse %x, dims = [3] : {IMAGE}",
        IMAGE,
        ["reverse 2x4x6x8xf32", "transpose 2x8x4x6xf32"],
    ),
    # Rows and columns change places: of [batch, rows, columns, channels] the same two.
    "transpose": (
        f"%y = stablehlo.transpose %x, dims = [0, 1, 3, 2] : ({IMAGE}) -> tensor<2x8x6x4xf32>",
        "tensor<2x8x6x4xf32>",
        ["transpose 2x8x6x4xf32"],
    ),
    "pad": (
        "%y = stablehlo.pad %x, %zero, low = [0, 0, 1, 0], high = [0, 0, 1, 0],"
        f" interior = [0, 0, 0, 0] : ({IMAGE}, tensor<f32>) -> tensor<2x8x6x6xf32>",
        "tensor<2x8x6x6xf32>",
        ["pad 2x6x6x8xf32", "transpose 2x8x6x6xf32"],
    ),
}


@pytest.mark.parametrize(("body", "type_", "expected"), BODIES.values(), ids=BODIES)
def test_operations_with_dimensions(body, type_, expected):
    after = rewritten(put_channels_last, between(body, type_=type_))
    assert operations(after)[2:] == expected


def test_dimensions_that_lie_apart_are_not_merged():
    """Channels and rows are no neighbours where the channels are last: the transpose stays."""
    text = between(
        f"%y = stablehlo.reshape %x : ({IMAGE}) -> tensor<2x32x6xf32>", type_="tensor<2x32x6xf32>"
    )
    assert rewritten(put_channels_last, text) == normalized(text)


def test_an_operation_without_a_rule_is_left():
    text = between(f"%y = stablehlo.reduce_precision %x, format = e5m10 : {IMAGE}")
    assert rewritten(put_channels_last, text) == normalized(text)


WEIGHT_GRADIENT = (
    "%{to} = stablehlo.custom_call @xla_dynamo.call(%{x})"
    ' {{api_version = 4 : i32, backend_config = {{kernel = "weight_gradient:{{}}"}}}}'
    f" : ({LAST}) -> {LAST}"
)


def test_weight_gradients_of_torch_take_images_too():
    body = f"%y = stablehlo.tanh %x : {IMAGE}"
    after = rewritten(put_channels_last, between(body, call=WEIGHT_GRADIENT))
    assert operations(after)[1:] == ["custom_call " + LAST[7:-1], "tanh " + LAST[7:-1],
                                     "transpose " + IMAGE[7:-1]]  # fmt: skip


@pytest.mark.parametrize(
    "call",
    [
        # Its configuration says "weight_gradient", but another kernel is called.
        WEIGHT_GRADIENT.replace('"weight_gradient:', '"attention:weight_gradient'),
        CONVOLUTION.replace("convolution", "matmul"),
    ],
    ids=["attention", "product"],
)
def test_modules_without_library_calls_on_images_are_left(call):
    text = between(f"%y = stablehlo.tanh %x : {IMAGE}", call=call)
    assert rewritten(put_channels_last, text) == normalized(text)
