"""Reads and writes at indices given by tensors or masks: index, index_put, masked_scatter."""

import math
from collections.abc import Sequence

import jax.numpy as jnp
import torch

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.rules.indexing.gather_scatter import (
    at_least_1d,
    gather_rows,
    reduce_into,
    scatter_rows,
    wrap_negative,
)
from xla_dynamo.lowerings.table import Context, aten, lowers, refuses

_MASKS = (torch.bool, torch.uint8)


def _indexed(
    x: Value, indices: Sequence[Value | None]
) -> tuple[list[int], list[Value], int, tuple[int, ...]]:
    """The indexed dims, their index tensors at one shape, where that shape goes, and the result's.

    As in NumPy: index tensors of neighbouring dims leave theirs in place, others go to the front.
    """
    dims = [d for d, index in enumerate(indices) if index is not None]
    tensors = [index for index in indices if index is not None]
    shape = build.broadcast_shapes(*map(build.shape_of, tensors))
    size = build.shape_of(x)
    spread = [
        build.broadcast_to(wrap_negative(build.cast(index, torch.int64), size[d]), shape)
        for d, index in zip(dims, tensors, strict=True)
    ]
    first = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    others = [n for d, n in enumerate(size) if d not in dims]
    return dims, spread, first, (*others[:first], *shape, *others[first:])


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(ctx: Context, x: Value, indices: list[Value | None]) -> Value:
    if 0 in ctx.out.shape:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    if any(i is not None and build.dtype_of(i) in _MASKS for i in indices):
        raise UnsupportedOperator(
            "indexing with a boolean mask gives a tensor whose size depends on values, and XLA's "
            "sizes are fixed: use torch.where or masked_fill, or multiply by the mask"
        )
    if all(i is None for i in indices):
        return x
    dims, spread, first, _ = _indexed(x, indices)
    return gather_rows(x, dims, spread, first)


@refuses(aten.index_put.default, aten._unsafe_index_put.default)
def mask_beside_index(
    x: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> str | None:
    given = [i for i in indices if i is not None]
    if len(given) > 1 and any(i.dtype in _MASKS for i in given):
        return "a boolean mask beside another index tensor"
    return None


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    ctx: Context,
    x: Value,
    indices: list[Value | None],
    values: Value,
    accumulate: bool = False,
) -> Value:
    combine = "sum" if accumulate else "set"
    given = [i for i in indices if i is not None]
    if not given:
        values = build.broadcast_to(values, build.shape_of(x))
        return build.add(x, values) if accumulate else values
    if any(build.dtype_of(i) in _MASKS for i in given):
        dim = next(d for d, i in enumerate(indices) if i is not None)
        return _put_masked(ctx, x, dim, given[0], values, accumulate)
    dims, spread, first, shape = _indexed(x, indices)
    return scatter_rows(x, dims, spread, first, build.broadcast_to(values, shape), combine)


def _put_masked(
    ctx: Context, x: Value, dim: int, mask: Value, values: Value, accumulate: bool
) -> Value:
    """x[..., mask] = values, whose dimension `dim` counts the mask's true elements, or is 1."""
    mask, shape = build.cast(mask, torch.bool), build.shape_of(x)
    masked = shape[dim : dim + build.rank_of(mask)]
    after = shape[dim + build.rank_of(mask) :]
    lead = dim + 1 + len(after) - build.rank_of(values)
    values = build.reshape(values, [1] * lead + list(build.shape_of(values)))
    if 0 in shape or 0 in build.shape_of(values):
        return x
    if build.shape_of(values)[dim] > 1:
        values = gather_rows(values, [dim], [call_jax(ctx, _rank_among_true, mask)], dim)
    sizes = list(build.shape_of(values))
    counted = list(masked) if sizes[dim] > 1 else [1] * len(masked)
    values = build.reshape(values, [*sizes[:dim], *counted, *sizes[dim + 1 :]])
    values = build.broadcast_to(values, shape)
    if accumulate:
        values = build.add(x, values)
    spread = build.broadcast_in_dim(mask, shape, range(dim, dim + build.rank_of(mask)))
    return build.where(spread, values, x)


def _rank_among_true(mask: jnp.ndarray) -> jnp.ndarray:
    """For each true element of a flattened mask, how many come before it."""
    return jnp.cumsum(mask.ravel()) - 1


@lowers(aten.masked_scatter.default)
def masked_scatter(ctx: Context, x: Value, mask: Value, source: Value) -> Value:
    shape = ctx.out.shape
    x, mask = build.broadcast_to(x, shape), build.broadcast_to(mask, shape)
    if 0 in shape or 0 in build.shape_of(source):
        return x
    flat = build.reshape(source, [build.numel_of(source)])
    ranks = build.reshape(call_jax(ctx, _rank_among_true, mask), shape)
    return build.where(mask, gather_rows(flat, [0], [ranks], 0), x)


@lowers(aten.masked_scatter_backward.default)
def masked_scatter_backward(
    ctx: Context, grad_output: Value, mask: Value, sizes: list[int]
) -> Value:
    n = math.prod(sizes)
    zeros = build.full([n], 0, ctx.out.dtype)
    if n == 0 or 0 in build.shape_of(grad_output):
        return build.reshape(zeros, sizes)
    mask = build.broadcast_to(mask, build.shape_of(grad_output))
    flat = [build.numel_of(grad_output)]
    rank = call_jax(ctx, _rank_among_true, mask)
    targets = build.where(build.reshape(mask, flat), rank, build.full_like(rank, n))
    grads = build.reshape(grad_output, flat)
    return build.reshape(scatter_rows(zeros, [0], [targets], 0, grads, "set"), sizes)


@lowers(aten.nonzero_static.default)
def nonzero_static(ctx: Context, x: Value, *, size: int, fill_value: int = -1) -> Value:
    if 0 in ctx.out.shape or 0 in build.shape_of(x):
        return build.full(ctx.out.shape, fill_value, ctx.out.dtype)
    return call_jax(ctx, jnp.argwhere, x, size=size, fill_value=fill_value)


@lowers(aten.repeat_interleave.Tensor)
def repeat_interleave(ctx: Context, repeats: Value, *, output_size: int | None = None) -> Value:
    if output_size is None:
        raise UnsupportedOperator(
            "the result of repeat_interleave has as many elements as the repeats add up to, and "
            "XLA's sizes are fixed: pass output_size"
        )
    repeated = call_jax(ctx, _repeated_indices, repeats, output_size=output_size)
    return build.cast(repeated, ctx.out.dtype)


def _repeated_indices(repeats: jnp.ndarray, output_size: int) -> jnp.ndarray:
    ends = jnp.cumsum(repeats)
    return jnp.searchsorted(ends, jnp.arange(output_size), side="right")


@lowers(aten.index_select.default)
def index_select(ctx: Context, x: Value, dim: int, index: Value) -> Value:
    dim = build.normalize_dim(dim, build.rank_of(x))
    rows = gather_rows(at_least_1d(x), [dim], [at_least_1d(index)], dim)
    return build.reshape(rows, ctx.out.shape)


@lowers(aten.index_reduce.default)
def index_reduce(
    ctx: Context,
    x: Value,
    dim: int,
    index: Value,
    source: Value,
    reduce: str,
    *,
    include_self: bool = True,
) -> Value:
    dim = build.normalize_dim(dim, build.rank_of(x))
    indices, source = [at_least_1d(index)], at_least_1d(source)
    if 0 in build.shape_of(source) or 0 in build.shape_of(x):
        return x

    def write(base: Value, updates: Value, combine: str) -> Value:
        return scatter_rows(base, [dim], indices, dim, updates, combine)

    return build.reshape(
        reduce_into(write, at_least_1d(x), source, reduce, include_self), ctx.out.shape
    )


@lowers(aten.take.default)
def take(ctx: Context, x: Value, index: Value) -> Value:
    size = build.numel_of(x)
    flat_index = wrap_negative(build.cast(index, torch.int64), size)
    return gather_rows(build.reshape(x, [size]), [0], [flat_index], 0)


@lowers(aten.put.default)
def put(ctx: Context, x: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    shape = build.shape_of(x)
    flat = build.reshape(x, [math.prod(shape)])
    flat_index = wrap_negative(build.cast(index, torch.int64), math.prod(shape))
    source = build.reshape(source, build.shape_of(index))
    combine = "sum" if accumulate else "set"
    return build.reshape(scatter_rows(flat, [0], [flat_index], 0, source, combine), shape)
