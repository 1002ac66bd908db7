"""Tensors made from nothing: full, arange, empty and their _like forms."""

from collections.abc import Sequence
from typing import Any

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Number,
    Value,
    broadcast_to,
    cast,
    compare,
    divide,
    full,
    iota,
    is_value,
    where,
)
from xla_dynamo.lowerings.table import Context, aten, lowers


@lowers(aten.full.default)
def full_(ctx: Context, size: list[int], fill_value: Number, **to: Any) -> Value:
    return full(ctx.out.shape, fill_value, ctx.out.dtype)


@lowers(aten.full_like.default)
def full_like(ctx: Context, x: Value, fill_value: Number, **to: Any) -> Value:
    return full(ctx.out.shape, fill_value, ctx.out.dtype)


@lowers(aten.scalar_tensor.default, "prims.scalar_tensor.default")
def scalar_tensor(ctx: Context, s: Number, **to: Any) -> Value:
    return full((), s, ctx.out.dtype)


@lowers(
    aten.empty.memory_format,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten._efficientzerotensor.default,
)
def empty(ctx: Context, *args: Any, **to: Any) -> Value:
    return full(ctx.out.shape, 0, ctx.out.dtype)


@lowers(aten.arange.start_step)
def arange(ctx: Context, start: Number, end: Number, step: Number = 1, **to: Any) -> Value:
    # torch counts in the widest type and rounds once.
    wide = torch.float64 if ctx.out.dtype.is_floating_point else torch.int64
    shape = ctx.out.shape
    steps = hlo.multiply(iota(shape, 0, wide), full(shape, step, wide))
    return cast(hlo.add(steps, full(shape, start, wide)), ctx.out.dtype)


@lowers(
    aten.linspace.default,
    aten.linspace.Tensor_Tensor,
    aten.linspace.Tensor_Scalar,
    aten.linspace.Scalar_Tensor,
)
def linspace(
    ctx: Context, start: Number | Value, end: Number | Value, steps: int, **to: Any
) -> Value:
    # As eager's kernel: integers cut their ends first, and count in float64 from the nearer end.
    shape, dtype = ctx.out.shape, ctx.out.dtype
    wide = dtype if dtype.is_floating_point or dtype.is_complex else torch.float64
    first, last = (cast(_ends(x, shape, dtype), wide) for x in (start, end))
    if steps < 2:
        return cast(first, dtype)
    step = divide(hlo.subtract(last, first), full(shape, steps - 1, wide))
    index = iota(shape, 0, torch.int64)
    left = hlo.subtract(full(shape, steps - 1, torch.int64), index)
    rising = hlo.add(first, hlo.multiply(step, cast(index, wide)))
    falling = hlo.subtract(last, hlo.multiply(step, cast(left, wide)))
    near_start = compare(index, full(shape, steps // 2, torch.int64), "LT")
    return cast(where(near_start, rising, falling), dtype)


def _ends(x: Number | Value, shape: Sequence[int], dtype: torch.dtype) -> Value:
    if is_value(x):
        return broadcast_to(cast(x, dtype), shape)
    number = x if dtype.is_floating_point or dtype.is_complex else int(x)  # type: ignore[arg-type]
    return full(shape, number, dtype)


@lowers(aten.fill.Scalar)
def fill(ctx: Context, self: Value, value: Number) -> Value:
    return full(ctx.out.shape, value, ctx.out.dtype)
