"""Maximum pooling with torch's flat indices, average pooling, and their gradients.

A window's maximum is taken dimension by dimension, the last one first, as a running maximum over
shifted slices: XLA fuses those, where its own window reduction of (value, index) pairs is slow.
Each choice is torch's: of equal elements the first in row-major order, of several NaN the last.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Number, Value
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.indexing.gather_scatter import scatter_rows
from xla_dynamo.lowerings.table import Context, Rule, aten, lowers


def _per_dim(numbers: int | Sequence[int], rank: int) -> list[int]:
    """One number for each dimension; torch lets one stand for all."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return listed * rank if len(listed) == 1 else listed


@dataclasses.dataclass(slots=True)
class Windows:
    """Windows along one dimension of size n: out of them, of k elements dilation apart."""

    n: int
    out: int
    k: int
    stride: int
    padding: int = 0
    dilation: int = 1

    def indices(self) -> np.ndarray:
        """Where element i of window o lies, as [o, i]; negative or n and more in the padding."""
        starts = np.arange(self.out) * self.stride - self.padding
        return starts[:, None] + np.arange(self.k) * self.dilation

    def shifted(self, x: Value, dim: int, fill: Number) -> list[Value]:
        """Element i of every window, for each i, as slices of the padded x."""
        last = (self.out - 1) * self.stride
        high = last + (self.k - 1) * self.dilation + 1 - self.n - self.padding
        low, ends = ([0] * build.rank_of(x) for _ in "ab")
        low[dim], ends[dim] = self.padding, max(high, 0)
        padded = build.pad(x, fill, low, ends)
        starts = [i * self.dilation for i in range(self.k)]
        return [build.slice_dim(padded, dim, i, i + last + 1, self.stride) for i in starts]


def _flat_positions(shape: Sequence[int], rank: int) -> Value:
    """For each element its number in the plane (or line, or volume) of the last `rank` dims."""
    position, step = build.full(shape, 0, torch.int64), 1
    for dim in reversed(range(len(shape) - rank, len(shape))):
        count = build.iota(shape, dim, torch.int64)
        position = hlo.add(position, hlo.multiply(count, build.full_like(count, step)))
        step *= shape[dim]
    return position


def _running_max(
    values: Sequence[Value], positions: Sequence[Value], valid: np.ndarray, dim: int
) -> tuple[Value, Value]:
    """The greatest of the values and its position; `valid[o, i]` says which exist along dim."""
    best, position = values[0], positions[0]
    for i in range(1, len(values)):
        better = build.compare(values[i], best, "GT")
        if build.dtype_of(best).is_floating_point:
            better = hlo.or_(better, build.is_nan(values[i]))
        unset = ~valid[:, :i].any(axis=1)  # all so far was padding: even -inf is better
        if unset.any():
            mask = build.array(unset, torch.bool)
            mask = build.broadcast_in_dim(mask, build.shape_of(best), [dim])
            better = hlo.or_(better, mask)
        position = build.where(better, positions[i], position)
        best = hlo.maximum(best, values[i])
    return best, position


class Cuts(Protocol):
    """The part of `Windows` that `max_pool` needs, for windows along one dimension."""

    n: int

    def indices(self) -> np.ndarray: ...

    def shifted(self, x: Value, dim: int, fill: Number) -> list[Value]: ...


def max_pool(x: Value, windows: Sequence[Cuts]) -> tuple[Value, Value]:
    """Maxima of x over windows of its last dimensions, and their flat positions there."""
    rank, lowest = build.rank_of(x), build.lowest(build.dtype_of(x))
    best, position = x, _flat_positions(build.shape_of(x), len(windows))
    for back, window in enumerate(reversed(windows), 1):
        dim, indices = rank - back, window.indices()
        best, position = _running_max(
            window.shifted(best, dim, lowest),
            window.shifted(position, dim, 0),
            (indices >= 0) & (indices < window.n),
            dim,
        )
    return best, position


def _max_pool_rule(rank: int) -> Rule:
    def rule(
        ctx: Context,
        x: Value,
        kernel_size: list[int],
        stride: Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        ceil_mode: bool = False,
    ) -> tuple[Value, Value]:
        return max_pool(x, _windows(ctx.out[0], x, rank, kernel_size, stride, padding, dilation))

    return rule


for _rank, _op in {2: aten.max_pool2d_with_indices, 3: aten.max_pool3d_with_indices}.items():
    lowers(_op.default)(_max_pool_rule(_rank))


def _windows(
    out: torch.Tensor,
    x: Value,
    rank: int,
    kernel: int | Sequence[int],
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int] = 1,
) -> list[Windows]:
    """The windows along the last `rank` dims of x that give a result of out's shape."""
    numbers = [kernel, stride or kernel, padding, dilation]
    sizes = zip(build.shape_of(x)[-rank:], out.shape[-rank:], strict=True)
    settings = zip(*[_per_dim(n, rank) for n in numbers], strict=True)
    return [Windows(*size, *setting) for size, setting in zip(sizes, settings, strict=True)]


# --- gradients of maxima -----------------------------------------------------------------------


def scatter_to_indices(grad: Value, indices: Value, like: Value, rank: int) -> Value:
    """Add each element of grad to the element of its plane that its flat index names."""
    shape = build.shape_of(like)
    rows, plane = math.prod(shape[:-rank]), math.prod(shape[-rank:])
    picked = [rows, build.numel_of(grad) // max(rows, 1)]
    row = hlo.multiply(build.iota(picked, 0, torch.int64), build.full(picked, plane, torch.int64))
    flat = hlo.add(build.reshape(indices, picked), row)
    zeros = build.full([rows * plane], 0, build.dtype_of(grad))
    n = [math.prod(picked)]
    summed = scatter_rows(zeros, [0], [build.reshape(flat, n)], 0, build.reshape(grad, n), "sum")
    return build.reshape(summed, shape)


def _max_pool_backward_rule(rank: int) -> Rule:
    def rule(ctx: Context, grad: Value, x: Value, *settings: Any) -> Value:
        *_, indices = settings
        return scatter_to_indices(grad, indices, x, rank)

    return rule


lowers(
    aten.max_pool2d_with_indices_backward.default,
    aten.adaptive_max_pool2d_backward.default,
    aten.fractional_max_pool2d_backward.default,
)(_max_pool_backward_rule(2))
lowers(
    aten.max_pool3d_with_indices_backward.default,
    aten.adaptive_max_pool3d_backward.default,
    aten.fractional_max_pool3d_backward.default,
)(_max_pool_backward_rule(3))


# --- averages ----------------------------------------------------------------------------------


# Above this many elements in a row a sum over windows is XLA's own: slices take long to compile.
_MOST_SLICES = 32


def _divisor(
    like: Value, windows: Sequence[Windows], count_include_pad: bool, override: int | None
) -> Value:
    """How many elements torch divides each window's sum by.

    Padding counts if asked, but never what a ceil_mode window covers beyond the padding.
    """
    if override is not None:
        return build.full_like(like, override)
    divisor, lead = build.full_like(like, 1), build.rank_of(like) - len(windows)
    for dim, w in enumerate(windows, lead):
        indices = w.indices()
        low, high = (-w.padding, w.n + w.padding) if count_include_pad else (0, w.n)
        counts = ((indices >= low) & (indices < high)).sum(axis=1)
        if (counts == counts[:1]).all():
            factor = build.full_like(like, int(counts.max(initial=1)))
        else:
            factor = build.cast(build.array(counts, torch.int32), build.dtype_of(like))
            factor = build.broadcast_in_dim(factor, build.shape_of(like), [dim])
        divisor = hlo.multiply(divisor, factor)
    return divisor


def _avg_pool_rule(rank: int) -> Rule:
    def rule(
        ctx: Context,
        x: Value,
        kernel_size: list[int],
        stride: Sequence[int] = (),
        padding: int | Sequence[int] = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Value:
        windows = _windows(ctx.out, x, rank, kernel_size, stride, padding)
        total = build.cast(x, computed_in(x))
        for dim, window in enumerate(windows, build.rank_of(x) - rank):
            total = _window_sums(total, window, dim)
        divisor = _divisor(total, windows, count_include_pad, divisor_override)
        return build.cast(build.divide(total, divisor), ctx.out.dtype)

    return rule


def _window_sums(x: Value, w: Windows, dim: int) -> Value:
    if w.k <= _MOST_SLICES:
        return functools.reduce(hlo.add, w.shifted(x, dim, 0))
    high = (w.out - 1) * w.stride + w.k - w.n - w.padding
    rank = build.rank_of(x)
    window, stride, pads = [1] * rank, [1] * rank, [(0, 0)] * rank
    window[dim], stride[dim], pads[dim] = w.k, w.stride, (w.padding, max(high, 0))
    sums = build.reduce_window(x, "sum", window, stride, pads)
    return build.slice_dim(sums, dim, 0, w.out)


def _avg_pool_backward_rule(rank: int) -> Rule:
    def rule(
        ctx: Context,
        grad: Value,
        x: Value,
        kernel_size: list[int],
        stride: Sequence[int],
        padding: int | Sequence[int],
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Value:
        promised = torch.empty(build.shape_of(grad), device="meta")
        windows = _windows(promised, x, rank, kernel_size, stride, padding)
        grad = build.cast(grad, computed_in(grad))
        grad = build.divide(grad, _divisor(grad, windows, count_include_pad, divisor_override))
        for dim, window in enumerate(windows, build.rank_of(x) - rank):
            grad = _spread_over_windows(grad, window, dim)
        return build.cast(grad, ctx.out.dtype)

    return rule


def _spread_over_windows(x: Value, w: Windows, dim: int) -> Value:
    """The transpose of _window_sums: each element goes to all elements of its window."""
    zeros = [0] * build.rank_of(x)
    low, high, interior = zeros.copy(), zeros.copy(), zeros.copy()
    low[dim] = w.k - 1 - w.padding
    high[dim] = w.n + w.padding - (w.out - 1) * w.stride - 1
    interior[dim] = w.stride - 1
    apart = build.pad(x, 0, low, high, interior)
    return _window_sums(apart, Windows(w.n + w.k - 1, w.n, w.k, 1), dim)


for _rank, _pool, _backward in (
    (2, aten.avg_pool2d, aten.avg_pool2d_backward),
    (3, aten.avg_pool3d, aten.avg_pool3d_backward),
):
    lowers(_pool.default)(_avg_pool_rule(_rank))
    lowers(_backward.default)(_avg_pool_backward_rule(_rank))
lowers(aten.avg_pool1d.default)(_avg_pool_rule(1))
