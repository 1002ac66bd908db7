"""Quantized numbers as PT2E writes them: `quantized_decomposed`, with scales and zero points.

torch registers these operators when torch.ao.quantization is imported.
"""

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Number, Value
from xla_dynamo.lowerings.builders.promotion import spread
from xla_dynamo.lowerings.table import Context, lowers

_WIDE = torch.float32
_OF_TENSORS = ("default", "tensor", "tensor2")


def _named(name: str) -> list[str]:
    """The overloads for one scale of all elements: a number or a tensor of one element."""
    return [f"quantized_decomposed.{name}.{overload}" for overload in _OF_TENSORS]


@lowers(*_named("quantize_per_tensor"))
def quantize_per_tensor(
    ctx: Context,
    x: Value,
    scale: Number | Value,
    zero_point: Number | Value,
    quant_min: Number | Value,
    quant_max: Number | Value,
    dtype: torch.dtype,
) -> Value:
    inverse = _inverse(scale, torch.float64)
    return _quantized(x, inverse, _one(zero_point), _one(quant_min), _one(quant_max), dtype)


@lowers("quantized_decomposed.quantize_per_channel.default")
def quantize_per_channel(
    ctx: Context,
    x: Value,
    scales: Value,
    zero_points: Value,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> Value:
    inverse = _along(_inverse(scales, build.dtype_of(scales)), axis, x)
    return _quantized(x, inverse, _along(zero_points, axis, x), quant_min, quant_max, dtype)


@lowers(*_named("dequantize_per_tensor"))
def dequantize_per_tensor(
    ctx: Context,
    x: Value,
    scale: Number | Value,
    zero_point: Number | Value,
    quant_min: Number | Value,
    quant_max: Number | Value,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Value:
    return _dequantized(x, _one(scale), _one(zero_point), ctx.out.dtype)


@lowers("quantized_decomposed.dequantize_per_channel.default")
def dequantize_per_channel(
    ctx: Context,
    x: Value,
    scales: Value,
    zero_points: Value | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> Value:
    zeros = 0 if zero_points is None else _along(zero_points, axis, x)
    return _dequantized(x, _along(scales, axis, x), zeros, ctx.out.dtype)


@lowers("quantized_decomposed.choose_qparams.tensor")
def choose_qparams(
    ctx: Context, x: Value, quant_min: int, quant_max: int, eps: float, dtype: torch.dtype
) -> tuple[Value, Value]:
    """A scale and a zero point of one element each, for a range that has 0 in it."""
    zero = build.scalar(0, build.dtype_of(x))
    dims = list(range(build.rank_of(x)))
    low = hlo.minimum(build.reduce(x, dims, "min"), zero)
    high = hlo.maximum(build.reduce(x, dims, "max"), zero)
    range_, count = spread([hlo.subtract(high, low), float(quant_max - quant_min)], _WIDE)
    rounded = build.cast(build.divide(range_, count), build.dtype_of(x))
    scale = hlo.maximum(*spread([rounded, eps], _WIDE))
    steps = hlo.round_nearest_even(build.divide(build.cast(low, _WIDE), scale))
    first, last = (build.scalar(n, torch.int32) for n in (quant_min, quant_max))
    point = hlo.clamp(first, hlo.subtract(first, build.cast(steps, torch.int32)), last)
    scale, point = build.cast(scale, torch.float64), build.cast(point, torch.int64)
    return build.reshape(scale, [1]), build.reshape(point, [1])


def _one(x: Number | Value) -> Number | Value:
    """A number as it is, and a tensor of one element as a scalar."""
    return build.reshape(x, []) if build.is_value(x) else x


def _along(x: Value, axis: int, like: Value) -> Value:
    """A vector along one axis of a tensor."""
    shape = [1] * build.rank_of(like)
    shape[axis] = build.shape_of(x)[0]
    return build.reshape(x, shape)


def _inverse(scale: Number | Value, dtype: torch.dtype) -> Number | Value:
    """1 / scale, which torch computes of one scale in float64, and of several in their dtype."""
    if not build.is_value(scale):
        return 1.0 / scale
    one, scale = spread([1.0, _one(scale) if dtype is torch.float64 else scale], dtype)
    return build.divide(one, scale)


def _quantized(
    x: Value,
    inverse: Number | Value,
    zero_point: Number | Value,
    low: Number | Value,
    high: Number | Value,
    dtype: torch.dtype,
) -> Value:
    steps = hlo.round_nearest_even(hlo.multiply(*spread([x, inverse], _WIDE)))
    moved = hlo.add(*spread([steps, zero_point], _WIDE))
    moved, low, high = spread([moved, low, high], _WIDE)
    return build.cast(hlo.clamp(low, moved, high), dtype)


def _dequantized(
    x: Value, scale: Number | Value, zero_point: Number | Value, dtype: torch.dtype
) -> Value:
    moved = hlo.subtract(*spread([x, zero_point], _WIDE))
    return build.cast(hlo.multiply(*spread([moved, scale], _WIDE)), dtype)
