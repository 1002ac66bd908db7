"""Sliding windows: unfold and im2col cut them, their gradients and col2im add them up again."""

import math

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.indexing.gather_scatter import gather_rows, scatter_rows
from xla_dynamo.lowerings.table import Context, aten, lowers

# More slices than this are one gather or scatter instead, to keep programs small.
_MANY = 64


def windows(x: Value, dim: int, size: int, step: int, dilation: int = 1) -> Value:
    """Windows along `dim`, which becomes two dimensions: [windows, size].

    XLA's gather takes an index an element; slices move whole blocks. So the windows are put
    together from slices, as few as the common divisor of size and step allows.
    """
    shape, span = build.shape_of(x), (size - 1) * dilation + 1
    count = (shape[dim] - span) // step + 1
    block = math.gcd(size, step) if dilation == 1 else 1
    if min(size // block, count) > _MANY:
        return gather_rows(x, [dim], [_indices(count, size, step, dilation)], dim)
    length = (count - 1) * step + span
    x = build.slice_dim(x, dim, 0, length)
    if size // block > count:
        each = [build.slice_dim(x, dim, i * step, i * step + span, dilation) for i in range(count)]
        return build.concatenate([build.expand_dims(window, dim) for window in each], dim)
    blocks = build.reshape(x, [*shape[:dim], length // block, block, *shape[dim + 1 :]])
    stride = step // block
    parts = [
        build.slice_dim(blocks, dim, i * dilation, i * dilation + (count - 1) * stride + 1, stride)
        for i in range(size // block)
    ]
    return build.concatenate(parts, dim + 1)


def overlap_add(x: Value, dim: int, length: int, step: int, dilation: int = 1) -> Value:
    """The transpose of `windows`: add [windows, size] at `dim` up into a dimension of `length`."""
    shape = build.shape_of(x)
    count, size = shape[dim : dim + 2]
    block = math.gcd(size, step) if dilation == 1 else 1
    if min(size // block, count) > _MANY:
        zeros = build.full([*shape[:dim], length, *shape[dim + 2 :]], 0, build.dtype_of(x))
        indices = _indices(count, size, step, dilation)
        return scatter_rows(zeros, [dim], [indices], dim, x, "sum")
    if size // block > count:
        flat = [*shape[:dim], size, *shape[dim + 2 :]]
        each = [build.reshape(build.slice_dim(x, dim, i, i + 1), flat) for i in range(count)]
        return _add_at(each, dim, [i * step for i in range(count)], dilation, length)
    parts = [build.slice_dim(x, dim + 1, i * block, (i + 1) * block) for i in range(size // block)]
    starts = [i * dilation for i in range(size // block)]
    used = ((count - 1) * step + (size - 1) * dilation) // block + 1
    total = _add_at(parts, dim, starts, step // block, used)
    total = build.reshape(total, [*shape[:dim], used * block, *shape[dim + 2 :]])
    return build.pad_dim(total, dim, 0, length - used * block)


def _add_at(parts: list[Value], dim: int, starts: list[int], stride: int, length: int) -> Value:
    """Add up parts whose elements come to stand `stride` apart from each one's start."""
    total = None
    for part, start in zip(parts, starts, strict=True):
        n = build.shape_of(part)[dim]
        after = length - start - (n - 1) * stride - 1
        part = build.pad_dim(part, dim, start, after, stride - 1)
        total = part if total is None else build.add(total, part)
    return total


def _indices(count: int, size: int, step: int, dilation: int) -> Value:
    first = build.iota([count, size], 0, torch.int64)
    along = build.iota([count, size], 1, torch.int64)
    return hlo.add(
        hlo.multiply(first, build.full_like(first, step)),
        hlo.multiply(along, build.full_like(along, dilation)),
    )


@lowers(aten.unfold.default)
def unfold(ctx: Context, x: Value, dimension: int, size: int, step: int) -> Value:
    if 0 in ctx.out.shape:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    if build.rank_of(x) == 0:
        return build.reshape(x, ctx.out.shape)
    dim = build.normalize_dim(dimension, build.rank_of(x))
    cut = windows(x, dim, size, step)
    order = [d for d in range(build.rank_of(cut)) if d != dim + 1]
    return build.transpose(cut, [*order, dim + 1])


@lowers(aten.unfold_backward.default)
def unfold_backward(
    ctx: Context, grad_in: Value, input_sizes: list[int], dim: int, size: int, step: int
) -> Value:
    if 0 in build.shape_of(grad_in):
        return build.full(input_sizes, 0, ctx.out.dtype)
    if not input_sizes:
        return build.reshape(grad_in, [])
    dim, last = build.normalize_dim(dim, len(input_sizes)), len(input_sizes)
    whole = [*input_sizes, size]
    whole[dim] = build.shape_of(grad_in)[dim]
    grad_in = build.broadcast_to(grad_in, whole)  # istft counts on it: one window for a batch
    order = [*range(dim + 1), last, *range(dim + 1, last)]
    wide = build.cast(build.transpose(grad_in, order), computed_in(grad_in))
    return build.cast(overlap_add(wide, dim, input_sizes[dim], step), ctx.out.dtype)


@lowers(aten.im2col.default)
def im2col(
    ctx: Context,
    x: Value,
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Value:
    batch = build.shape_of(x)[:-3]
    if 0 in ctx.out.shape:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    x = build.reshape(x, [math.prod(batch), *build.shape_of(x)[-3:]])
    x = build.pad(x, 0, [0, 0, *padding], [0, 0, *padding])
    x = windows(x, 2, kernel_size[0], stride[0], dilation[0])
    x = windows(x, 4, kernel_size[1], stride[1], dilation[1])
    return build.reshape(build.transpose(x, [0, 1, 3, 5, 2, 4]), ctx.out.shape)


@lowers(aten.col2im.default)
def col2im(
    ctx: Context,
    x: Value,
    output_size: list[int],
    kernel_size: list[int],
    dilation: list[int],
    padding: list[int],
    stride: list[int],
) -> Value:
    if 0 in ctx.out.shape:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    *batch, channels, _, _ = ctx.out.shape
    padded = [n + 2 * p for n, p in zip(output_size, padding, strict=True)]
    counts = [
        (n - d * (k - 1) - 1) // s + 1
        for n, k, d, s in zip(padded, kernel_size, dilation, stride, strict=True)
    ]
    x = build.reshape(x, [math.prod(batch), channels, *kernel_size, *counts])
    x = build.cast(build.transpose(x, [0, 1, 4, 2, 5, 3]), computed_in(x))
    x = overlap_add(x, 4, padded[1], stride[1], dilation[1])
    x = overlap_add(x, 2, padded[0], stride[0], dilation[0])
    crop = [0, 0, *(-p for p in padding)]
    return build.cast(build.reshape(build.pad(x, 0, crop, crop), ctx.out.shape), ctx.out.dtype)
