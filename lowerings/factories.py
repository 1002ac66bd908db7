"""Tensors made from nothing: full, arange, empty and their _like forms."""

from typing import Any

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.build import Number, Value, cast, full, iota
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten


@lowers(aten.full.default)
def full_(ctx: Context, size: list[int], fill_value: Number, **to: Any) -> Value:
    return full(ctx.out.shape, fill_value, ctx.out.dtype)


@lowers(aten.full_like.default)
def full_like(ctx: Context, x: Value, fill_value: Number, **to: Any) -> Value:
    return full(ctx.out.shape, fill_value, ctx.out.dtype)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(ctx: Context, s: Number, **to: Any) -> Value:
    return full((), s, ctx.out.dtype)


@lowers(
    aten.empty.memory_format,
    aten.empty_permuted.default,
    aten.empty_strided.default,
    aten.new_empty_strided.default,
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


@lowers(aten.fill.Scalar)
def fill(ctx: Context, self: Value, value: Number) -> Value:
    return full(ctx.out.shape, value, ctx.out.dtype)
