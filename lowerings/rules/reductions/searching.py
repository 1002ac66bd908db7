"""Searches in sorted data."""

from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from xla_dynamo.lowerings.builders.build import (
    Number,
    Value,
    cast,
    dtype_of,
    scalar,
)
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.table import Context, aten, lowers

# --- searches ----------------------------------------------------------------------------------


def search(rows: jax.Array, values: jax.Array, right: bool) -> jax.Array:
    """Where values would be inserted into sorted rows, by bisection; a NaN goes to the end."""
    size = rows.shape[-1]

    def halve(_: Any, bounds: Any) -> Any:
        low, high = bounds
        middle = (low + high) // 2
        at = jnp.take_along_axis(rows, jnp.minimum(middle, size - 1), axis=-1, mode="clip")
        passed = ~(at > values if right else at >= values)
        open_ = low < high
        return jnp.where(open_ & passed, middle + 1, low), jnp.where(open_ & ~passed, middle, high)

    low = jnp.zeros(values.shape, jnp.int64)
    if not size or not values.size:
        return low
    bounds = low, jnp.full(values.shape, size, jnp.int64)
    return lax.fori_loop(0, size.bit_length(), halve, bounds)[0]


def _searchsorted(rows: jax.Array, values: jax.Array, *sorter: jax.Array, right: bool) -> jax.Array:
    dtype = jnp.promote_types(rows.dtype, values.dtype)
    if sorter:
        rows = jnp.take_along_axis(rows, sorter[0], axis=-1)
    if rows.ndim == 1 and values.ndim != 1:
        flat = search(rows.astype(dtype), values.reshape(-1).astype(dtype), right)
        return flat.reshape(values.shape)
    return search(rows.astype(dtype), values.astype(dtype), right)


@lowers(aten.searchsorted.Tensor)
def searchsorted(
    ctx: Context,
    sorted_sequence: Value,
    x: Value,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Value | None = None,
) -> Value:
    operands = [sorted_sequence, x] if sorter is None else [sorted_sequence, x, sorter]
    found = call_jax(ctx, _searchsorted, *operands, right=right or side == "right")
    return cast(found, ctx.out.dtype)


def _number(like: Value, number: Number) -> Value:
    """A number to look for, in the dtype that compares it exactly with the sorted values."""
    exact = isinstance(number, float) and not dtype_of(like).is_floating_point
    return scalar(number, torch.float64 if exact else dtype_of(like))


@lowers(aten.searchsorted.Scalar)
def searchsorted_scalar(
    ctx: Context, sorted_sequence: Value, number: Number, **options: Any
) -> Value:
    return searchsorted(ctx, sorted_sequence, _number(sorted_sequence, number), **options)


@lowers(aten.bucketize.Tensor)
def bucketize(ctx: Context, x: Value, boundaries: Value, **options: Any) -> Value:
    return searchsorted(ctx, boundaries, x, **options)


@lowers(aten.bucketize.Scalar)
def bucketize_scalar(ctx: Context, number: Number, boundaries: Value, **options: Any) -> Value:
    return searchsorted(ctx, boundaries, _number(boundaries, number), **options)
