"""Shape operators: views and copies that only move elements."""

import math

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.table import Context, aten, lowers, refuses
from xla_dynamo.torch_private import invert_perm


@lowers(
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)
def view(ctx: Context, x: Value, *_: object) -> Value:
    return build.reshape(x, ctx.out.shape)


# By name: torch registers its prims when they are first used.
@lowers(
    aten.alias.default,
    aten.detach.default,
    "prims.copy_strided.default",
)
def alias(ctx: Context, x: Value, *_: object) -> Value:
    return x


@lowers(aten.resize.default)
def resize(ctx: Context, x: Value, size: list[int], **_: object) -> Value:
    """The first elements of a contiguous tensor in another shape; beyond them may be anything."""
    given, count = build.numel_of(x), math.prod(ctx.out.shape)
    flat = build.pad_dim(build.reshape(x, [given]), 0, 0, max(0, count - given))
    flat = build.slice_dim(flat, 0, 0, count)
    return build.reshape(flat, ctx.out.shape)


@refuses(aten.resize.default)
def resize_of_a_view(x: torch.Tensor, size: list[int], **_: object) -> str | None:
    same = list(x.shape) == list(size) or x.is_contiguous()
    return None if same else "what lies between a view's elements would come to light"


@lowers(aten.expand.default)
def expand(ctx: Context, x: Value, size: list[int], *, implicit: bool = False) -> Value:
    return build.broadcast_to(x, ctx.out.shape)


@lowers(aten.permute.default)
def permute(ctx: Context, x: Value, dims: list[int]) -> Value:
    return build.transpose(x, [build.normalize_dim(d, build.rank_of(x)) for d in dims])


@lowers(aten.transpose.int)
def transpose(ctx: Context, x: Value, dim0: int, dim1: int) -> Value:
    order = list(range(build.rank_of(x)))
    if order:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return build.transpose(x, order)


@lowers(aten.t.default)
def t(ctx: Context, x: Value) -> Value:
    return build.transpose(x, range(build.rank_of(x))[::-1])


@lowers(aten.select.int)
def select(ctx: Context, x: Value, dim: int, index: int | Value) -> Value:
    dim = build.normalize_dim(dim, build.rank_of(x))
    row = build.slice_at(x, dim, _from_front(index, build.shape_of(x)[dim]))
    return build.reshape(row, ctx.out.shape)


def _from_front(index: int | Value, size: int) -> int | Value:
    """An index counted from the front; in a loop it may have been read off a tensor."""
    if not build.is_value(index):
        return index % size
    index = build.reshape(build.cast(index, torch.int64), ())
    negative = build.compare(index, build.scalar(0, torch.int64), "LT")
    return build.where(negative, hlo.add(index, build.scalar(size, torch.int64)), index)


@lowers(aten.select_scatter.default)
def select_scatter(ctx: Context, x: Value, src: Value, dim: int, index: int) -> Value:
    dim = build.normalize_dim(dim, build.rank_of(x))
    src = build.expand_dims(build.cast(src, build.dtype_of(x)), dim)
    return build.update_slice(x, src, dim, index % build.shape_of(x)[dim])


@lowers(aten.slice.Tensor)
def slice_(
    ctx: Context,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    dim = build.normalize_dim(dim, build.rank_of(x))
    size = build.shape_of(x)[dim]
    # Python's own slices clamp as torch's do; an end before the start means an empty slice.
    low, high, _ = slice(start, end, step).indices(size)
    return build.slice_dim(x, dim, low, max(low, high), step)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    ctx: Context,
    x: Value,
    src: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    dim, shape = build.normalize_dim(dim, build.rank_of(x)), build.shape_of(x)
    low, high, _ = slice(start, end, step).indices(shape[dim])
    count = len(range(low, high, step))
    if count == 0:
        return x
    part = [*shape[:dim], count, *shape[dim + 1 :]]
    src = build.broadcast_to(build.cast(src, build.dtype_of(x)), part)
    if step == 1 or count == 1:
        return build.update_slice(x, src, dim, low)
    padding = [(0, 0, 0)] * len(shape)
    padding[dim] = (low, shape[dim] - low - (count - 1) * step - 1, step - 1)
    return build.overlay(x, src, padding)


@lowers(aten.diagonal.default)
def diagonal(ctx: Context, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    order, (*batch, rows, columns) = _diagonal_last(x, dim1, dim2)
    length = ctx.out.shape[-1]
    if length == 0:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    # In row-major order the elements of a diagonal are columns + 1 apart.
    first = offset if offset >= 0 else -offset * columns
    flat = build.reshape(build.transpose(x, order), [*batch, rows * columns])
    last = first + (length - 1) * (columns + 1)
    return build.slice_dim(flat, len(batch), first, last + 1, columns + 1)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    ctx: Context, x: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    order, (*batch, rows, columns) = _diagonal_last(x, dim1, dim2)
    length = build.shape_of(src)[-1]
    if 0 in build.shape_of(src):
        return x
    first = offset if offset >= 0 else -offset * columns
    last = first + (length - 1) * (columns + 1)
    flat = build.reshape(build.transpose(x, order), [*batch, rows * columns])
    padding = [(0, 0, 0)] * len(batch) + [(first, rows * columns - last - 1, columns)]
    flat = build.overlay(flat, build.cast(src, build.dtype_of(x)), padding)
    moved = build.reshape(flat, [*batch, rows, columns])
    return build.transpose(moved, invert_perm(order))


def _diagonal_last(x: Value, dim1: int, dim2: int) -> tuple[list[int], list[int]]:
    """The permutation that puts dim1 and dim2 last, and the shape it gives."""
    rank = build.rank_of(x)
    last = [build.normalize_dim(dim1, rank), build.normalize_dim(dim2, rank)]
    order = [d for d in range(rank) if d not in last] + last
    return order, [build.shape_of(x)[d] for d in order]


@lowers(aten.flip.default)
def flip(ctx: Context, x: Value, dims: list[int]) -> Value:
    return build.reverse(x, [build.normalize_dim(d, build.rank_of(x)) for d in dims])


@lowers(aten.repeat.default)
def repeat(ctx: Context, x: Value, repeats: list[int]) -> Value:
    shape = [1] * (len(repeats) - build.rank_of(x)) + list(build.shape_of(x))
    if 0 in ctx.out.shape:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    # A dimension is stretched in front of itself: [n] -> [times, n] -> [times * n].
    pairs = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    x = build.broadcast_in_dim(build.reshape(x, shape), pairs, range(1, len(pairs), 2))
    return build.reshape(x, ctx.out.shape)
