"""Sort, topk and order statistics.

XLA:CPU sorts one array of integers about four times as fast as (key, index) pairs or floats under
torch's order. So an element's key and its index are packed into one 64-bit integer: no two are
equal, which makes the sort stable, and the index comes back as the low half.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from xla_dynamo.lowerings.builders.build import Value, rank_of, reshape
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.values import refuse_nothing
from xla_dynamo.lowerings.table import Context, aten, lowers

Pair = tuple[jax.Array, jax.Array]


def ordered_key(x: jax.Array) -> jax.Array:
    """Signed integers in the order of x, with every NaN greatest and -0.0 equal to 0.0."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        x = x if x.dtype == jnp.float64 else x.astype(jnp.float32)
        bits = jnp.int64 if x.dtype == jnp.float64 else jnp.int32
        key = lax.bitcast_convert_type(jnp.where(x == 0, jnp.zeros_like(x), x), bits)
        greatest = jnp.iinfo(bits).max
        return jnp.where(jnp.isnan(x), greatest, jnp.where(key < 0, key ^ greatest, key))
    if x.dtype == jnp.uint64:
        return lax.bitcast_convert_type(x ^ jnp.uint64(1 << 63), jnp.int64)
    return x.astype(jnp.int64 if x.dtype in (jnp.uint32, jnp.int64) else jnp.int32)


def order_of(x: jax.Array, dim: int, descending: bool) -> jax.Array:
    """The stable permutation that sorts x along dim, as int64."""
    key = ~ordered_key(x) if descending else ordered_key(x)
    index = lax.broadcasted_iota(jnp.int64, x.shape, dim)
    low_half = jnp.int64((1 << 32) - 1)
    if key.dtype == jnp.int32:
        return lax.sort((key.astype(jnp.int64) << 32) | index, dimension=dim) & low_half
    # A 64-bit key is sorted by its low half first, taken as unsigned, and then by its high half.
    low = (key << 32) ^ jnp.iinfo(jnp.int64).min
    by_low = lax.sort(low | index, dimension=dim) & low_half
    high = take_along(key, by_low, dim) & ~low_half
    by_high = lax.sort(high | index, dimension=dim) & low_half
    return take_along(by_low, by_high, dim)


def take_along(x: jax.Array, indices: jax.Array, dim: int) -> jax.Array:
    """x.gather(dim, indices), for indices in bounds."""
    return jnp.take_along_axis(x, indices, axis=dim, mode="promise_in_bounds")


def _sorted(x: jax.Array, dim: int, descending: bool) -> Pair:
    order = order_of(x, dim, descending)
    return take_along(x, order, dim), order


def _topk(x: jax.Array, k: int, dim: int, largest: bool) -> Pair:
    size = x.shape[dim]
    narrow = x.dtype.itemsize < 4 or x.dtype == jnp.float32
    if not narrow or 8 * k > size or k == 0:
        order = lax.slice_in_dim(order_of(x, dim, largest), 0, k, axis=dim)
        return take_along(x, order, dim), order
    # XLA:CPU has a fast top_k for float32 alone, ordered as the bits are: hand it the keys.
    key = ordered_key(x.astype(jnp.float32))
    key = key if largest else ~key
    bits = jnp.where(key < 0, key ^ jnp.iinfo(jnp.int32).max, key)
    rows = jnp.moveaxis(lax.bitcast_convert_type(bits, jnp.float32), dim, -1)
    order = jnp.moveaxis(lax.top_k(rows, k)[1], -1, dim).astype(jnp.int64)
    return take_along(x, order, dim), order


def _kth(x: jax.Array, k: int, dim: int) -> Pair:
    order = lax.slice_in_dim(order_of(x, dim, False), k - 1, k, axis=dim)
    return take_along(x, order, dim), order


def _median(x: jax.Array, dim: int, ignore_nan: bool) -> Pair:
    """The lower of two middle values; a NaN wins, unless NaNs are to be ignored."""
    size, nan = x.shape[dim], jnp.isnan(x)
    numbers = size - nan.sum(dim, keepdims=True)
    middle = jnp.maximum(numbers - 1, 0) // 2
    if not ignore_nan:
        # Sorted, the NaNs stand last, and the first of them follows the numbers.
        middle = jnp.where(numbers < size, jnp.minimum(numbers, size - 1), middle)
    order = take_along(order_of(x, dim, False), middle, dim)
    return take_along(x, order, dim), order


def _mode(x: jax.Array, dim: int) -> Pair:
    """The least of the commonest values, and its last index."""
    order = order_of(x, dim, False)
    values, index = take_along(x, order, dim), lax.broadcasted_iota(jnp.int64, x.shape, dim)
    before = jnp.roll(values, 1, dim)
    starts = jnp.where((values != before) | (index == 0), index, 0)
    length = index - lax.associative_scan(jnp.maximum, starts, axis=dim)
    end = jnp.argmax(length, dim, keepdims=True)
    return take_along(values, end, dim), take_along(order, end, dim)


def _along(ctx: Context, fn: Any, x: Value, dim: int, **static: Any) -> tuple[Value, ...]:
    """Call a JAX function of (x, dim) on a tensor of at least one dimension."""
    flat = x if rank_of(x) else reshape(x, [1])
    results = call_jax(ctx, fn, flat, dim=dim % rank_of(flat), **static)
    return tuple(reshape(y, promised.shape) for y, promised in zip(results, ctx.out, strict=True))


@lowers(aten.sort.default)
def sort(ctx: Context, x: Value, dim: int = -1, descending: bool = False) -> tuple[Value, ...]:
    return _along(ctx, _sorted, x, dim, descending=descending)


@lowers(aten.sort.stable)
def sort_stable(
    ctx: Context, x: Value, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[Value, ...]:
    return _along(ctx, _sorted, x, dim, descending=descending)


@lowers(aten.topk.default)
def topk(
    ctx: Context, x: Value, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Value, ...]:
    return _along(ctx, _topk, x, dim, k=k, largest=largest)


@lowers(aten.kthvalue.default)
def kthvalue(
    ctx: Context, x: Value, k: int, dim: int = -1, keepdim: bool = False
) -> tuple[Value, ...]:
    return _along(ctx, _kth, x, dim, k=k)


@lowers(aten.median.dim)
def median(ctx: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, ...]:
    refuse_nothing("median", x, dim)
    return _along(ctx, _median, x, dim, ignore_nan=False)


@lowers(aten.nanmedian.dim)
def nanmedian(ctx: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, ...]:
    refuse_nothing("nanmedian", x, dim)
    return _along(ctx, _median, x, dim, ignore_nan=True)


def _median_of_all(x: jax.Array, ignore_nan: bool) -> jax.Array:
    if not x.size:
        return jnp.full((), jnp.nan, x.dtype)
    return _median(x.reshape(-1), 0, ignore_nan)[0].reshape(())


@lowers(aten.median.default)
def median_of_all(ctx: Context, x: Value) -> Value:
    return call_jax(ctx, _median_of_all, x, ignore_nan=False)


@lowers(aten.nanmedian.default)
def nanmedian_of_all(ctx: Context, x: Value) -> Value:
    return call_jax(ctx, _median_of_all, x, ignore_nan=True)


@lowers(aten.mode.default)
def mode(ctx: Context, x: Value, dim: int = -1, keepdim: bool = False) -> tuple[Value, ...]:
    refuse_nothing("mode", x, dim)
    return _along(ctx, _mode, x, dim)
