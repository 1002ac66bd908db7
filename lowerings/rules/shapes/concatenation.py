"""Joining and splitting: cat, stack, split, unbind."""

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.table import Context, aten, lowers


@lowers(aten.cat.default)
def cat(ctx: Context, tensors: list[Value], dim: int = 0) -> Value:
    rank = len(ctx.out.shape)
    # torch lets 1-d empty tensors join tensors of any rank.
    joined = [t for t in tensors if build.shape_of(t) != (0,)] if rank != 1 else tensors
    if not joined:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    cast = [build.cast(t, ctx.out.dtype) for t in joined]
    return build.concatenate(cast, build.normalize_dim(dim, rank))


@lowers(aten.stack.default)
def stack(ctx: Context, tensors: list[Value], dim: int = 0) -> Value:
    dim = build.normalize_dim(dim, len(ctx.out.shape))
    cast = [build.expand_dims(build.cast(t, ctx.out.dtype), dim) for t in tensors]
    return build.concatenate(cast, dim)


@lowers(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(
    ctx: Context, x: Value, split_sizes: list[int], dim: int = 0
) -> tuple[Value, ...]:
    dim = build.normalize_dim(dim, build.rank_of(x))
    parts, start = [], 0
    for size in split_sizes:
        parts.append(build.slice_dim(x, dim, start, start + size))
        start += size
    return tuple(parts)


@lowers(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(ctx: Context, x: Value, split_size: int, dim: int = 0) -> tuple[Value, ...]:
    return split_with_sizes(ctx, x, [part.shape[dim] for part in ctx.out], dim)


@lowers(aten.unbind.int)
def unbind(ctx: Context, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = build.normalize_dim(dim, build.rank_of(x))
    return tuple(
        build.reshape(build.slice_dim(x, dim, i, i + 1), part.shape)
        for i, part in enumerate(ctx.out)
    )
