"""Running reductions along a dimension: cumsum, cumprod, cummax, cummin, logcumsumexp.

Each is an associative scan of logarithmic depth, written in JAX. XLA:CPU takes about as long for
`reduce_window`, but only after a compiler pass has rewritten it; without that, its time is
quadratic.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from xla_dynamo.lowerings.builders.build import (
    Value,
    cast,
    dtype_of,
    rank_of,
    reduce_window,
    reshape,
    shape_of,
)
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.table import Context, aten, lowers

_DOUBLED = {torch.float32: torch.float64, torch.complex64: torch.complex128}


def _cumsum(x: jax.Array, dim: int) -> jax.Array:
    return lax.associative_scan(jnp.add, x, axis=dim)


def _cumprod(x: jax.Array, dim: int) -> jax.Array:
    return lax.associative_scan(jnp.multiply, x, axis=dim)


def _logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    return lax.associative_scan(jnp.logaddexp, x, axis=dim)


def _logcumsumexp_in_order(x: jax.Array, dim: int) -> jax.Array:
    """Of complex numbers, one after another: another order gives other multiples of 2 pi i."""

    def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        less = total.real < x.real
        low, high = jnp.where(less, total, x), jnp.where(less, x, total)
        infinite = jnp.where(low.real < 0, low, jnp.log(jnp.exp(low) + jnp.exp(high)))
        special = jnp.isinf(low.real) & (low.real == high.real)
        total = jnp.where(special, infinite, jnp.log1p(jnp.exp(low - high)) + high)
        return total, total

    rows = jnp.moveaxis(x, dim, 0)
    return jnp.moveaxis(lax.scan(add, jnp.full_like(rows[0], -jnp.inf), rows)[1], 0, dim)


def _accumulated_in(ctx: Context, x: Value) -> torch.dtype:
    """Torch's CPU kernels keep a running float32 sum or product in a double."""
    if ctx.platform == "cpu":
        return _DOUBLED.get(dtype_of(x), computed_in(x))
    return computed_in(x)


def _running(scan: Callable[..., jax.Array], kind: str) -> Callable[..., Value]:
    def rule(ctx: Context, x: Value, dim: int, *, dtype: torch.dtype | None = None) -> Value:
        x = cast(x, ctx.out.dtype)
        if not rank_of(x):
            return x
        wide = cast(x, _accumulated_in(ctx, x))
        dim %= rank_of(x)
        if ctx.target.bounded and not dtype_of(wide).is_complex:
            return cast(_windows(wide, dim, kind), ctx.out.dtype)
        return cast(call_jax(ctx, scan, wide, dim=dim), ctx.out.dtype)

    return rule


def _windows(x: Value, dim: int, kind: str) -> Value:
    """The reductions of all that is not behind each element: one operation, whatever the size."""
    sizes = [1] * rank_of(x)
    sizes[dim] = shape_of(x)[dim]
    pads = [(n - 1, 0) for n in sizes]
    return reduce_window(x, kind, sizes, [1] * rank_of(x), pads)


lowers(aten.cumsum.default)(_running(_cumsum, "sum"))
lowers(aten.cumprod.default)(_running(_cumprod, "prod"))


@lowers(aten.logcumsumexp.default)
def logcumsumexp(ctx: Context, x: Value, dim: int) -> Value:
    if not rank_of(x) or 0 in shape_of(x):
        return x
    scan = _logcumsumexp_in_order if dtype_of(x).is_complex else _logcumsumexp
    scanned = call_jax(ctx, scan, cast(x, computed_in(x)), dim=dim % rank_of(x))
    return cast(scanned, ctx.out.dtype)


def _cumulative_extremum(x: jax.Array, dim: int, largest: bool) -> tuple[jax.Array, jax.Array]:
    """The latest of equal values gives the index, and a NaN is passed on with the latest NaN's."""

    def later(a: Any, b: Any) -> Any:
        (x, i), (y, j) = a, b
        wins = (y >= x if largest else y <= x) & ~jnp.isnan(x) | jnp.isnan(y)
        return jnp.where(wins, y, x), jnp.where(wins, j, i)

    indices = lax.broadcasted_iota(jnp.int64, x.shape, dim)
    return lax.associative_scan(later, (x, indices), axis=dim)


def _cummax_or_min(largest: bool) -> Callable[..., tuple[Value, ...]]:
    def rule(ctx: Context, x: Value, dim: int) -> tuple[Value, ...]:
        flat = x if rank_of(x) else reshape(x, [1])
        pair = call_jax(ctx, _cumulative_extremum, flat, dim=dim % rank_of(flat), largest=largest)
        return tuple(reshape(y, ctx.out[0].shape) for y in pair)

    return rule


lowers(aten.cummax.default)(_cummax_or_min(largest=True))
lowers(aten.cummin.default)(_cummax_or_min(largest=False))
