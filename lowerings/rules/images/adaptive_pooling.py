"""Pooling to a given output size: windows of unequal sizes, or at random positions."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Number, Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.images.pooling import max_pool
from xla_dynamo.lowerings.rules.indexing.gather_scatter import gather_rows
from xla_dynamo.lowerings.table import Context, aten, lowers


@dataclasses.dataclass(slots=True)
class AdaptiveWindows:
    """Window o covers the elements from floor(o * n / out) to ceil((o + 1) * n / out)."""

    n: int
    out: int

    def starts(self) -> np.ndarray:
        return np.arange(self.out) * self.n // max(self.out, 1)

    def ends(self) -> np.ndarray:
        return -(-np.arange(1, self.out + 1) * self.n // max(self.out, 1))

    def indices(self) -> np.ndarray:
        """Where element i of window o lies, as [o, i]; n past the window's end."""
        starts, ends = self.starts()[:, None], self.ends()[:, None]
        indices = starts + np.arange((ends - starts).max(initial=0))
        return np.where(indices < ends, indices, self.n)

    def shifted(self, x: Value, dim: int, fill: Number) -> list[Value]:
        """Element i of every window, for each i; the fill past a window's end."""
        return [_picked(x, dim, column, fill) for column in self.indices().T]


def _picked(x: Value, dim: int, indices: np.ndarray, fill: Number) -> Value:
    """The elements of x at indices (of any shape) along dim; the fill for indices past its end."""
    n = build.shape_of(x)[dim]
    known = build.array(np.minimum(indices, n - 1), torch.int64)
    picked = gather_rows(x, [dim], [known], dim)
    if (indices < n).all():
        return picked
    inside = build.array(indices < n, torch.bool)
    dims = range(dim, dim + indices.ndim)
    inside = build.broadcast_in_dim(inside, build.shape_of(picked), dims)
    return build.where(inside, picked, build.full_like(picked, fill))


@lowers(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(ctx: Context, x: Value, output_size: list[int]) -> tuple[Value, Value]:
    sizes = build.shape_of(x)[-len(output_size) :]
    return max_pool(x, [AdaptiveWindows(*s) for s in zip(sizes, output_size, strict=True)])


@lowers(
    aten.adaptive_avg_pool1d.default,
    aten._adaptive_avg_pool2d.default,
    aten._adaptive_avg_pool3d.default,
)
def _adaptive_avg_pool(ctx: Context, x: Value, output_size: list[int]) -> Value:
    total, rank = build.cast(x, computed_in(x)), len(output_size)
    for dim, size in enumerate(output_size, build.rank_of(x) - rank):
        n = build.shape_of(x)[dim]
        if size and n % size == 0:
            shape = build.shape_of(total)
            split = [*shape[:dim], size, n // size, *shape[dim + 1 :]]
            members = build.reshape(total, split)
        else:
            members = _picked(total, dim, AdaptiveWindows(n, size).indices(), 0)
        total = build.reduce(members, [dim + 1], "sum")
    counts = _window_sizes(total, build.shape_of(x)[-rank:])
    return build.cast(build.divide(total, counts), ctx.out.dtype)


def _window_sizes(like: Value, sizes: Sequence[int]) -> Value:
    """How many elements each window has, for windows over dimensions of these sizes."""
    counts = build.full_like(like, 1)
    for dim, n in enumerate(sizes, build.rank_of(like) - len(sizes)):
        w = AdaptiveWindows(n, build.shape_of(like)[dim])
        count = build.cast(build.array(w.ends() - w.starts(), torch.int32), build.dtype_of(like))
        counts = hlo.multiply(counts, build.broadcast_in_dim(count, build.shape_of(like), [dim]))
    return counts


def _adaptive_avg_pool_backward(grad: Value, x: Value, rank: int) -> Value:
    sizes = build.shape_of(x)[-rank:]
    total = build.cast(grad, computed_in(grad))
    total = build.divide(total, _window_sizes(total, sizes))
    for dim, n in enumerate(sizes, build.rank_of(x) - rank):
        total = build.reduce(
            _picked(total, dim, _covering(n, build.shape_of(grad)[dim]), 0), [dim + 1], "sum"
        )
    return build.cast(total, build.dtype_of(x))


def _covering(n: int, out: int) -> np.ndarray:
    """The windows that element h lies in, as [h, i]; out where there are fewer than i."""
    w, h = AdaptiveWindows(n, out), np.arange(n)[:, None]
    first = (w.ends()[None, :] <= h).sum(axis=1)
    last = (w.starts()[None, :] <= h).sum(axis=1)
    covering = first[:, None] + np.arange((last - first).max(initial=0))
    return np.where(covering < last[:, None], covering, out)


@lowers(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(ctx: Context, grad: Value, x: Value) -> Value:
    return _adaptive_avg_pool_backward(grad, x, 2)


@lowers(aten._adaptive_avg_pool3d_backward.default)
def _adaptive_avg_pool3d_backward(ctx: Context, grad: Value, x: Value) -> Value:
    return _adaptive_avg_pool_backward(grad, x, 3)


@lowers(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(
    ctx: Context, x: Value, kernel_size: list[int], output_size: list[int], random_samples: Value
) -> tuple[Value, Value]:
    if 0 in ctx.out[0].shape:
        return tuple(build.full(promised.shape, 0, promised.dtype) for promised in ctx.out)
    return call_jax(
        ctx,
        _fractional_max_pool,
        x,
        random_samples,
        kernel=tuple(kernel_size),
        out=tuple(output_size),
    )


def _fractional_max_pool(
    x: jax.Array, samples: jax.Array, kernel: tuple[int, ...], out: tuple[int, ...]
) -> tuple[jax.Array, jax.Array]:
    """Maxima over windows whose positions depend on a sample for each (image, channel, dim)."""
    rank = len(kernel)
    sizes = x.shape[-rank:]
    planes = x.reshape(-1, *sizes)
    # There may be samples of more images than there are; their channels are the input's.
    samples = samples.reshape(-1, rank)[: planes.shape[0]]
    if rank == 2:
        samples = samples[:, ::-1]  # torch takes the width's first in two dimensions only
    indices = [
        _starts(samples[:, d], sizes[d], kernel[d], out[d])[:, :, None] + jnp.arange(kernel[d])
        for d in range(rank)
    ]
    # One axis for the plane, then (window, element) for each dimension.
    spread = [
        p.reshape(-1, *[1] * 2 * d, *p.shape[1:], *[1] * 2 * (rank - 1 - d))
        for d, p in enumerate(indices)
    ]
    plane = jnp.arange(planes.shape[0]).reshape(-1, *[1] * 2 * rank)
    order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2)]
    members = planes[(plane, *spread)].transpose(order).reshape(planes.shape[0], *out, -1)
    flat = sum(p * math.prod(sizes[d + 1 :]) for d, p in enumerate(spread))
    flat = flat.transpose(order).reshape(planes.shape[0], *out, -1)
    nan = jnp.isnan(members)
    last_nan = members.shape[-1] - 1 - jnp.argmax(nan[..., ::-1], axis=-1)
    chosen = jnp.where(nan.any(axis=-1), last_nan, jnp.argmax(members, axis=-1))[..., None]
    best = jnp.take_along_axis(members, chosen, axis=-1)
    index = jnp.take_along_axis(flat, chosen, axis=-1)
    shape = (*x.shape[:-rank], *out)
    return best.reshape(shape), index.reshape(shape).astype(jnp.int64)


def _starts(sample: jax.Array, n: int, k: int, out: int) -> jax.Array:
    """Where the windows begin, as [plane, window]; the last one ends with the input."""
    end = jnp.full((sample.shape[0], 1), n - k)
    if out == 1:
        return end
    step = jnp.asarray((n - k) / (out - 1), sample.dtype)
    window = jnp.arange(out - 1, dtype=sample.dtype)
    moved = ((window + sample[:, None]) * step).astype(jnp.int32)
    return jnp.concatenate([moved - (sample[:, None] * step).astype(jnp.int32), end], axis=1)
