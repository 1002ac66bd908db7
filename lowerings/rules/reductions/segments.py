"""Reductions over segments of a dimension, and over the bits of all elements."""

import functools
import math

import jax
import jax.numpy as jnp
import torch

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Number, Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.table import Context, aten, lowers

_SEGMENT = {
    "sum": (jax.ops.segment_sum, jnp.add, 0.0),
    "mean": (jax.ops.segment_sum, jnp.add, 0.0),
    "prod": (jax.ops.segment_prod, jnp.multiply, 1.0),
    "max": (jax.ops.segment_max, jnp.maximum, -jnp.inf),
    "min": (jax.ops.segment_min, jnp.minimum, jnp.inf),
}


def _segment_reduce(
    data: jax.Array, offsets: jax.Array, *, reduce: str, initial: float | None
) -> jax.Array:
    """Reduce data[batch, n, ...] over the segments that offsets[batch, segments + 1] bound."""
    segments = offsets.shape[-1] - 1
    segment_fn, combine, identity = _SEGMENT[reduce]
    row = jnp.arange(data.shape[1])
    after = jnp.sum(row[None, :, None] >= offsets[:, None, :], axis=-1) - 1
    segment = jnp.where(after < 0, segments, after)  # rows in no segment fall out at the end
    reduced = jax.vmap(functools.partial(segment_fn, num_segments=segments))(data, segment)
    start = identity if initial is None else initial
    reduced = combine(reduced, jnp.asarray(start, data.dtype))
    if reduce != "mean":
        return reduced
    count = jnp.diff(offsets, axis=-1)
    count = count.reshape(count.shape + (1,) * (data.ndim - 2)).astype(data.dtype)
    empty = jnp.asarray(jnp.nan if initial is None else initial, data.dtype)
    return jnp.where(count > 0, reduced / count, empty)


def _reduce_by_lengths(
    data: jax.Array, lengths: jax.Array, *, reduce: str, initial: float | None
) -> jax.Array:
    offsets = jnp.pad(jnp.cumsum(lengths, axis=-1), [(0, 0), (1, 0)])
    return _segment_reduce(data, offsets, reduce=reduce, initial=initial)


@lowers(aten.segment_reduce.default)
def segment_reduce(
    ctx: Context,
    data: Value,
    reduce: str,
    lengths: Value | None = None,
    indices: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Number | None = None,
) -> Value:
    shape = build.shape_of(data)
    batch = math.prod(shape[:axis])
    reduction, bounds = (
        (_reduce_by_lengths, lengths) if offsets is None else (_segment_reduce, offsets)
    )
    bounds = build.reshape(build.cast(bounds, torch.int64), [batch, build.shape_of(bounds)[axis]])
    rows = build.reshape(data, [batch, *shape[axis:]])
    start = None if initial is None else float(initial)  # type: ignore[arg-type]
    result = call_jax(ctx, reduction, rows, bounds, reduce=reduce, initial=start)
    return build.reshape(result, ctx.out.shape)


@lowers(aten.hash_tensor.default)
def hash_tensor(
    ctx: Context, self: Value, dim: list[int] | None = None, keepdim: bool = False, mode: int = 0
) -> Value:
    """The exclusive or of all elements' bits, as float64 or int64 (the only mode there is)."""
    floating = build.dtype_of(self).is_floating_point
    wide = build.cast(self, torch.float64 if floating else torch.int64)
    bits = build.bitcast(wide, torch.uint64)
    dims = build.normalize_dims(dim or [], build.rank_of(self))
    return build.reshape(build.reduce(bits, dims, "xor"), ctx.out.shape)
