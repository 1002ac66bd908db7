"""Interpolation of images to another size: a sparse linear map along each dimension in turn.

The program's builder knows the elements and the weights that make each result. So every mode is a
table of indices and weights, and its gradient is the transposed table.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.indexing.gather_scatter import gather_rows
from xla_dynamo.lowerings.table import Context, Rule, aten, lowers


@dataclasses.dataclass(slots=True)
class Taps:
    """Result o is the sum over i of weights[o, i] * x[indices[o, i]]; the index n counts as none.

    Without weights there is one index a result, and the element is copied.
    """

    n: int
    indices: np.ndarray
    weights: np.ndarray | None = None

    def transposed(self) -> "Taps":
        """The table of the gradient, from results to elements."""
        out, width = self.indices.shape
        weights = np.ones_like(self.indices, float) if self.weights is None else self.weights
        rows, weights = np.repeat(np.arange(out), width), weights.reshape(-1)
        columns = self.indices.reshape(-1)
        rows, weights, columns = (a[columns < self.n] for a in (rows, weights, columns))
        order = np.argsort(columns, kind="stable")
        rows, weights, columns = rows[order], weights[order], columns[order]
        counts = np.bincount(columns, minlength=self.n)
        slot = np.arange(len(columns)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (self.n, int(counts.max(initial=0)))
        indices, ways = np.full(shape, out), np.zeros(shape)
        indices[columns, slot] = rows
        ways[columns, slot] = weights
        return Taps(out, indices, ways)


def apply_taps(x: Value, dim: int, taps: Taps) -> Value:
    """The map along one dimension of x; x's dtype is the one to compute in."""
    if taps.weights is None:
        return _pick(x, dim, taps.indices[:, 0])
    columns = zip(taps.indices.T, taps.weights.T, strict=True)
    terms = [_term(x, dim, taps.n, *column) for column in columns]
    if terms:
        return functools.reduce(hlo.add, terms)
    shape = list(build.shape_of(x))
    shape[dim] = taps.indices.shape[0]
    return build.full(shape, 0, build.dtype_of(x))


def _pick(x: Value, dim: int, indices: np.ndarray) -> Value:
    if np.array_equal(indices, np.arange(build.shape_of(x)[dim])):
        return x
    return gather_rows(x, [dim], [build.array(indices, torch.int64)], dim)


def _term(x: Value, dim: int, n: int, indices: np.ndarray, weights: np.ndarray) -> Value:
    picked = _pick(x, dim, np.minimum(indices, n - 1))
    weight = build.cast(build.array(weights, torch.float64), build.dtype_of(x))
    product = hlo.multiply(picked, build.broadcast_in_dim(weight, build.shape_of(picked), [dim]))
    if (indices < n).all():
        return product
    # Select, since an infinity that does not belong to a result must not touch it.
    inside = build.array(indices < n, torch.bool)
    inside = build.broadcast_in_dim(inside, build.shape_of(product), [dim])
    return build.where(inside, product, build.full_like(product, 0))


def apply_taps_to_bytes(x: Value, dim: int, taps: Taps) -> Value:
    """The map in torch's fixed-point numbers for uint8: weights of 16 bits, a rounded shift."""
    assert taps.weights is not None
    bits, most = 0, taps.weights.max(initial=0)
    while bits < 22 and int(0.5 + most * (1 << (bits + 1))) < 1 << 15:
        bits += 1
    scaled = taps.weights * (1 << bits)
    fixed = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5))
    total = apply_taps(build.cast(x, torch.int32), dim, Taps(taps.n, taps.indices, fixed))
    total = hlo.add(total, build.full_like(total, 1 << (bits - 1)))
    total = hlo.shift_right_arithmetic(total, build.full_like(total, bits))
    return build.cast(
        hlo.clamp(build.scalar(0, torch.int32), total, build.scalar(255, torch.int32)), torch.uint8
    )


# --- tables ------------------------------------------------------------------------------------


def _scale(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> np.floating:
    """Elements a result, in the precision that torch computes coordinates in."""
    if align_corners:
        return real(n - 1) / real(out - 1) if out > 1 else real(0)
    if scale is not None and scale > 0:
        return real(1 / scale)
    return real(n) / real(out)


def _nearest(offset: float) -> Callable[..., Taps]:
    def table(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
        # torch computes coordinates in float32, whatever the dtype of the image.
        step = _scale(n, out, False, scale, np.float32)
        indices = np.floor((np.arange(out, dtype=np.float32) + np.float32(offset)) * step)
        return Taps(n, np.minimum(indices.astype(np.int64), n - 1)[:, None])

    return table


def _source(
    n: int, out: int, align_corners: bool, scale: float | None, real: Any, low: float
) -> tuple[np.ndarray, np.ndarray]:
    """Where results lie among the elements: the element before, and the way to the next."""
    step, index = _scale(n, out, align_corners, scale, real), np.arange(out, dtype=real)
    half = real(0.5)
    source = index * step if align_corners else np.maximum(step * (index + half) - half, real(low))
    before = np.minimum(np.floor(source).astype(np.int64), n - 1)
    return before, np.clip(source - before.astype(real), real(0), real(1))


def _linear(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
    if n == out:
        before, way = np.arange(n), np.zeros(n, real)
        after = before
    else:
        before, way = _source(n, out, align_corners, scale, real, 0)
        after = np.minimum(before + 1, n - 1)
    return Taps(n, np.stack([before, after], 1), np.stack([1 - way, way], 1))


def _keys_cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic convolution kernel (R. Keys, 1981) at distance x >= 0."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _cubic(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
    before, way = _source(n, out, align_corners, scale, real, -math.inf)
    indices = np.clip(before[:, None] + np.arange(-1, 3), 0, n - 1)
    distances = np.stack([way + 1, way, 1 - way, 2 - way], 1)
    return Taps(n, indices, _keys_cubic(distances, -0.75))


def _cubic_bytes(n: int, *settings: Any) -> Taps:
    """As `_cubic`, with one weight for an element that stands for several: they are rounded."""
    taps = _cubic(n, *settings)
    assert taps.weights is not None
    same = taps.indices[:, :, None] == taps.indices[:, None, :]
    is_first = same.argmax(2) == np.arange(same.shape[2])
    weights = np.where(is_first, (same * taps.weights[:, None, :]).sum(2), 0)
    return Taps(n, np.where(is_first, taps.indices, n), weights)


def _filtered(
    support: float, kernel: Callable[[np.ndarray], np.ndarray], *, antialias: bool
) -> Callable[..., Taps]:
    """Tables that evaluate a kernel at each element's distance and make the weights sum to one.

    With antialias the kernel is stretched to cover the elements that a result stands for.
    """

    def table(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
        step = _scale(n, out, align_corners, scale, real)
        stretch = max(step, real(1)) if antialias else real(1)
        reach, half = real(support) * stretch, real(0.5)
        # With antialias, torch counts from an element's edge under align_corners too.
        delta = real(0.5 if align_corners and not antialias else 0)
        centre = step * (np.arange(out, dtype=real) + half - delta)
        low = np.maximum((centre - reach + half + delta).astype(np.int64), 0)
        high = np.minimum((centre + reach + half + delta).astype(np.int64), n)
        width = min(int((high - low).max(initial=0)), math.ceil(reach) * 2 + 1)
        indices = low[:, None] + np.arange(width)
        weights = kernel(np.abs((indices - centre[:, None] + half - delta) / stretch))
        weights = np.where(indices < high[:, None], weights, 0)
        weights = weights / weights.sum(axis=1, keepdims=True)
        return Taps(n, np.where(indices < high[:, None], indices, n), weights)

    return table


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - x, 0)


_TABLES: dict[str, Callable[..., Taps]] = {
    "nearest": _nearest(0),
    "nearest_exact": _nearest(0.5),
    "linear": _linear,
    "cubic": _cubic,
    "linear_aa": _filtered(1, _triangle, antialias=True),
    "cubic_aa": _filtered(2, lambda x: _keys_cubic(x, -0.5), antialias=True),
    "lanczos_aa": _filtered(
        3, lambda x: np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0), antialias=True
    ),
    # torch's kernel for bytes has weights of its own.
    "linear_bytes": _filtered(1, _triangle, antialias=False),
    "cubic_bytes": _cubic_bytes,
}


_BYTE_MODES = {"linear": "linear_bytes", "cubic": "cubic_bytes"} | {
    m: m for m in _TABLES if m.endswith("aa")
}


def _tables(
    mode: str,
    sizes: Sequence[int],
    out: Sequence[int],
    settings: Sequence[bool | float | None],
    dtype: torch.dtype,
) -> list[Taps]:
    """A table a dimension. The settings are torch's: align_corners where there is one, scales."""
    align_corners = bool(settings[0]) if "nearest" not in mode else False
    scales = list(settings) if "nearest" in mode else list(settings[1:])
    scales += [None] * (len(sizes) - len(scales))
    real = np.float64 if dtype is torch.float64 else np.float32
    return [
        _TABLES[mode](n, o, align_corners, scale, real)
        for n, o, scale in zip(sizes, out, scales, strict=True)
    ]


# --- rules -------------------------------------------------------------------------------------


def _forward(mode: str) -> Rule:
    def rule(ctx: Context, x: Value, output_size: list[int], *settings: float | None) -> Value:
        sizes = build.shape_of(x)[2:]
        dtype = build.dtype_of(x)
        if dtype is torch.uint8 and mode in _BYTE_MODES:
            tables = _tables(_BYTE_MODES[mode], sizes, output_size, settings, torch.float64)
            for dim, taps in reversed(list(enumerate(tables, 2))):
                x = apply_taps_to_bytes(x, dim, taps)
            return x
        whole = not dtype.is_floating_point and "nearest" not in mode
        wide = torch.float32 if whole else computed_in(x)
        y = x if "nearest" in mode else build.cast(x, wide)
        for dim, taps in enumerate(_tables(mode, sizes, output_size, settings, dtype), 2):
            y = apply_taps(y, dim, taps)
        if whole:
            low, high = (build.scalar(n, wide) for n in (0, torch.iinfo(dtype).max))
            y = hlo.clamp(low, hlo.round_nearest_even(y), high)
        return build.cast(y, ctx.out.dtype)

    return rule


def _backward(mode: str) -> Rule:
    def rule(
        ctx: Context,
        grad: Value,
        output_size: list[int],
        input_size: list[int],
        *settings: float | None,
    ) -> Value:
        y = build.cast(grad, computed_in(grad))
        tables = _tables(mode, input_size[2:], output_size, settings, build.dtype_of(grad))
        for dim, taps in enumerate(tables, 2):
            y = apply_taps(y, dim, taps.transposed())
        return build.cast(y, ctx.out.dtype)

    return rule


def _vec(rule: Rule) -> Rule:
    """The rule of the .vec overload, which gives a size or one scale a dimension."""

    def vec(ctx: Context, x: Value, output_size: list[int] | None, *settings: Any) -> Value:
        *align_corners, factors = settings
        size = list(ctx.out.shape[2:])
        return rule(ctx, x, size, *align_corners, *(factors or [None] * len(size)))

    return vec


for _name, _mode in {
    "upsample_nearest1d": "nearest",
    "upsample_nearest2d": "nearest",
    "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "nearest_exact",
    "_upsample_nearest_exact2d": "nearest_exact",
    "_upsample_nearest_exact3d": "nearest_exact",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "linear",
    "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
    "_upsample_bilinear2d_aa": "linear_aa",
    "_upsample_bicubic2d_aa": "cubic_aa",
    "_upsample_lanczos2d_aa": "lanczos_aa",
}.items():
    _packet = getattr(aten, _name)
    _rule = lowers(_packet.default)(_forward(_mode))
    if not isinstance(_packet.vec, str):  # some have no such overload in any torch
        lowers(_packet.vec)(_vec(_rule))
    lowers(getattr(aten, f"{_name}_backward").default)(_backward(_mode))
