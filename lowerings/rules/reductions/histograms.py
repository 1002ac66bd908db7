"""Histograms, written in JAX."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from xla_dynamo.lowerings.builders.build import Value, cast, numel_of, reshape
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.reductions.searching import search
from xla_dynamo.lowerings.table import Context, aten, lowers


def _histc(x: jax.Array, bins: int, low: float, high: float) -> jax.Array:
    x = x.reshape(-1)
    first, last = jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)
    if low == high and x.size:
        first, last = x.min(), x.max()
    first, last = (
        jnp.where(first == last, first - 1, first),
        jnp.where(first == last, last + 1, last),
    )
    inside = (x >= first) & (x <= last)
    index = ((x - first) * bins / (last - first)).astype(jnp.int64)
    index = jnp.where(inside, jnp.minimum(index, bins - 1), bins)
    return jnp.zeros(bins, x.dtype).at[index].add(1, mode="drop")


@lowers(aten.histc.default)
def histc(ctx: Context, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    wide = cast(x, computed_in(x))
    counts = call_jax(ctx, _histc, wide, bins=bins, low=float(min), high=float(max))
    return cast(counts, ctx.out.dtype)


def _edges(x: jax.Array, bins: int, span: Sequence[float]) -> jax.Array:
    """Even edges over a range, that of the data if none is given; an empty one is widened."""
    if not span and x.size:
        first, last = x.min(), x.max()
    else:
        first, last = (jnp.asarray(end, x.dtype) for end in span or (0.0, 1.0))
    margin = jnp.where(first == last, 0.5, 0).astype(x.dtype)
    return jnp.linspace(first - margin, last + margin, bins + 1, dtype=x.dtype)


def _all_edges(points: jax.Array, bins: Sequence[int], span: Sequence[float]) -> list[jax.Array]:
    return [_edges(points[:, d], n, span[2 * d : 2 * d + 2]) for d, n in enumerate(bins)]


def _counts(points: jax.Array, *rest: jax.Array, weighted: bool, density: bool) -> jax.Array:
    """Counts of points (N, D) in the boxes between D rows of edges; the last boxes are closed."""
    edges, weight = (rest[:-1], rest[-1].reshape(-1)) if weighted else (rest, None)
    if weight is None:
        weight = jnp.ones(points.shape[0], points.dtype)
    box, inside = jnp.zeros(points.shape[0], jnp.int64), jnp.ones(points.shape[0], bool)
    for d, row in enumerate(edges):
        x, count = points[:, d], row.shape[0] - 1
        inside &= (x >= row[0]) & (x <= row[-1])
        box = box * count + jnp.clip(search(row, x, True) - 1, 0, count - 1)
    shape = tuple(row.shape[0] - 1 for row in edges)
    boxes = math.prod(shape)
    box = jnp.where(inside, box, boxes)
    counts = jnp.zeros(boxes, weight.dtype).at[box].add(weight, mode="drop").reshape(shape)
    if density:
        counts /= counts.sum()
        for d, row in enumerate(edges):
            counts /= jnp.expand_dims(jnp.diff(row), [e for e in range(len(shape)) if e != d])
    return counts


def _points(x: Value, dims: int) -> Value:
    return reshape(x, [numel_of(x) // max(dims, 1), dims])


@lowers(aten._histogramdd_from_bin_tensors.default)
def histogramdd(
    ctx: Context, x: Value, bins: list[Value], *, weight: Value | None = None, density: bool = False
) -> Value:
    weights = [] if weight is None else [weight]
    return call_jax(
        ctx,
        _counts,
        _points(x, len(bins)),
        *bins,
        *weights,
        weighted=bool(weights),
        density=density,
    )


@lowers(aten._histogramdd_bin_edges.default)
def histogramdd_bin_edges(
    ctx: Context, x: Value, bins: list[int], *, range: list[float] | None = None, **options: Any
) -> list[Value]:
    return call_jax(ctx, _all_edges, _points(x, len(bins)), bins=list(bins), span=list(range or []))


@lowers(aten._histogramdd_from_bin_cts.default)
def histogramdd_from_counts(
    ctx: Context, x: Value, bins: list[int], *, range: list[float] | None = None, **options: Any
) -> Value:
    return histogramdd(ctx, x, histogramdd_bin_edges(ctx, x, bins, range=range), **options)


@lowers(aten.histogram.bins_tensor)
def histogram(ctx: Context, x: Value, bins: Value, **options: Any) -> tuple[Value, Value]:
    return histogramdd(ctx, _points(x, 1), [bins], **options), bins


@lowers(aten.histogram.bin_ct)
def histogram_of_count(
    ctx: Context, x: Value, bins: int = 100, *, range: list[float] | None = None, **options: Any
) -> tuple[Value, Value]:
    (edges,) = histogramdd_bin_edges(ctx, _points(x, 1), [bins], range=range)
    return histogram(ctx, x, edges, **options)
