"""as_strided: a tensor read or written through the storage of another.

The graph's values have no storage. The sizes, strides and offset of the base's fake tensor tell
which elements eager would find in memory.
"""

import math

import numpy as np
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.strides import (
    Sizes,
    overlaps,
    row_major_order,
    storage_length,
)
from xla_dynamo.lowerings.rules.images.windows import windows
from xla_dynamo.lowerings.rules.indexing.gather_scatter import gather_rows, scatter_rows
from xla_dynamo.lowerings.table import Context, aten, lowers
from xla_dynamo.torch_private import invert_perm


@lowers(aten.as_strided.default)
def as_strided(
    ctx: Context, x: Value, size: Sizes, stride: Sizes, storage_offset: int | None = None
) -> Value:
    base = ctx.operands[0]
    if 0 in size:
        return build.full(size, 0, build.dtype_of(x))
    start = _start(base, storage_offset)
    order = row_major_order(base.shape, base.stride())
    end = start + storage_length(size, stride)
    if order is None or start < 0 or end > base.numel():
        indices = _held_indices(base, size, stride, start)
        flat = build.reshape(x, [base.numel()])
        return gather_rows(flat, [0], [build.array(indices, torch.int64)], 0)
    flat = build.reshape(build.transpose(x, order), [base.numel()])
    return _view(build.slice_dim(flat, 0, start, end), size, stride)


@lowers(aten.as_strided_scatter.default)
def as_strided_scatter(
    ctx: Context,
    x: Value,
    src: Value,
    size: Sizes,
    stride: Sizes,
    storage_offset: int | None = None,
) -> Value:
    base = ctx.operands[0]
    if 0 in size:
        return x
    start = _start(base, storage_offset)
    order = row_major_order(base.shape, base.stride())
    length, end = base.numel(), start + storage_length(size, stride)
    src = build.cast(src, build.dtype_of(x))
    if order is None or start < 0 or end > length:
        indices = build.array(_held_indices(base, size, stride, start), torch.int64)
        flat = scatter_rows(build.reshape(x, [length]), [0], [indices], 0, src, "set")
        return build.reshape(flat, base.shape)
    moved = build.transpose(x, order)
    flat = build.reshape(moved, [length])
    if overlaps(size, stride):
        offsets = _offsets(size, stride, start)
        flat = scatter_rows(flat, [0], [offsets], 0, src, "set")
    else:
        around = [start], [length - end]
        new = build.pad(_lay_out(src, stride), 0, *around)
        written = _lay_out(build.full(size, True, torch.bool), stride)
        full = math.prod(size) == length
        flat = new if full else build.where(build.pad(written, False, *around), new, flat)
    return build.transpose(build.reshape(flat, build.shape_of(moved)), invert_perm(order))


def _start(base: torch.Tensor, storage_offset: int | None) -> int:
    """Where a view begins, counted from the base's first element."""
    return 0 if storage_offset is None else storage_offset - base.storage_offset()


def _descending(size: Sizes, stride: Sizes) -> list[int]:
    """Dimensions that move through storage, from the longest stride to the shortest."""
    moving = [d for d, n in enumerate(size) if n > 1 and stride[d] > 0]
    return sorted(moving, key=lambda d: -stride[d])


def _view(flat: Value, size: Sizes, stride: Sizes) -> Value:
    """The strided view of a flat span: one cut into (perhaps overlapping) windows a dimension."""
    order = _descending(size, stride)
    x = flat
    for level, d in enumerate(order):
        inner = order[level + 1 :]
        reach = 1 + sum((size[i] - 1) * stride[i] for i in inner)
        step, shape = stride[d], build.shape_of(x)
        if reach <= step:
            x = _fit(x, level, size[d] * step)
            x = build.reshape(x, [*shape[:level], size[d], step])
        else:
            # Windows of whole rows of the next stride: sharing a divisor with the step, they are
            # put together from few slices.
            width = math.ceil(reach / stride[inner[0]]) * stride[inner[0]]
            x = windows(_fit(x, level, (size[d] - 1) * step + width), level, width, step)
        x = _fit(x, level + 1, reach)
    x = build.reshape(x, [size[d] for d in order])
    ascending = sorted(order)
    x = build.transpose(x, [order.index(d) for d in ascending])
    return build.broadcast_in_dim(x, size, ascending)


def _fit(x: Value, dim: int, length: int) -> Value:
    """Crop or zero-pad the end of a dimension to a length."""
    return build.pad_dim(x, dim, 0, length - build.shape_of(x)[dim])


def _lay_out(x: Value, stride: Sizes) -> Value:
    """The inverse of `_view` where nothing overlaps, with zeros (False) in the gaps."""
    size = build.shape_of(x)
    order = _descending(size, stride)
    still = [d for d in range(len(size)) if d not in order]
    x = build.reshape(build.transpose(x, order + still), [*(size[d] for d in order), 1])
    for level in reversed(range(len(order))):
        *outer, n, reach = build.shape_of(x)
        step = stride[order[level]]
        x = build.reshape(_fit(x, level + 1, step), [*outer, n * step])
        x = _fit(x, level, (n - 1) * step + reach)
    return x


def _offsets(size: Sizes, stride: Sizes, start: int) -> Value:
    """The offset in storage of every element of a view."""
    places = build.full(size, start, torch.int64)
    for d, step in enumerate(stride):
        count = build.iota(size, d, torch.int64)
        places = hlo.add(places, hlo.multiply(count, build.full_like(count, step)))
    return places


def flat_storage(x: Value, size: Sizes, stride: Sizes) -> Value:
    """Write x's elements where a strided tensor keeps them; elements that share an offset agree."""
    storage = build.full([storage_length(size, stride)], 0, build.dtype_of(x))
    return scatter_rows(storage, [0], [_offsets(size, stride, 0)], 0, x, "set")


def _held_indices(base: torch.Tensor, size: Sizes, stride: Sizes, start: int) -> np.ndarray:
    """Which elements of a base with gaps or repetitions stand at the offsets of a view.

    Raises:
        UnsupportedOperator: the view reaches memory outside of the base.

    """

    def offsets(size: Sizes, stride: Sizes, start: int) -> np.ndarray:
        steps = [np.arange(n) * s for n, s in zip(size, stride, strict=True)]
        total = np.asarray(start)
        for step in np.ix_(*steps):
            total = total + step
        return total

    held, first = np.unique(offsets(base.shape, base.stride(), 0), return_index=True)
    wanted = offsets(size, stride, start)
    found = np.minimum(np.searchsorted(held, wanted), len(held) - 1)
    if not len(held) or (held[found] != wanted).any():
        raise UnsupportedOperator(
            "as_strided reaches memory that the tensor it is called on does not show: call it "
            "on the whole tensor, or use slicing"
        )
    return first[found]
