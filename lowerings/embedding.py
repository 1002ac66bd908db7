"""Embedding tables: rows looked up, bags of rows, and their gradients."""

from typing import Any

import jax.numpy as jnp
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.lowerings import build
from xla_dynamo.lowerings.build import Value
from xla_dynamo.lowerings.from_jax import call_jax
from xla_dynamo.lowerings.gather_scatter import gather_rows, scatter_rows
from xla_dynamo.lowerings.promotion import computed_in
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten

_SUM, _MEAN, _MAX = range(3)


@lowers(aten.embedding.default)
def embedding(
    ctx: Context,
    weight: Value,
    indices: Value,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Value:
    return gather_rows(weight, [0], [indices], 0)


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    ctx: Context,
    grad_output: Value,
    indices: Value,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:
    indices = _skip_padding(indices, padding_idx, num_weights)
    rows = build.cast(grad_output, computed_in(grad_output))
    if scale_grad_by_freq:
        rows = _each_row(hlo.divide, rows, _frequency(indices, num_weights, build.dtype_of(rows)))
    zeros = build.full(ctx.out.shape, 0, build.dtype_of(rows))
    return build.cast(scatter_rows(zeros, [0], [indices], 0, rows, "sum"), ctx.out.dtype)


@lowers(aten.embedding_renorm.default)
def embedding_renorm(
    ctx: Context, x: Value, indices: Value, max_norm: float, norm_type: float
) -> Value:
    rows = gather_rows(x, [0], [indices], 0)
    rows = call_jax(ctx, _renormed, rows, max_norm=max_norm, norm_type=norm_type)
    return scatter_rows(x, [0], [indices], 0, rows, "set")


def _renormed(rows: jnp.ndarray, max_norm: float, norm_type: float) -> jnp.ndarray:
    flat = rows.reshape(-1, rows.shape[-1])
    norm = jnp.linalg.norm(flat, ord=norm_type, axis=1, keepdims=True)
    scaled = jnp.where(norm > max_norm, flat * (max_norm / (norm + 1e-7)), flat)
    return scaled.reshape(rows.shape).astype(rows.dtype)


def _skip_padding(indices: Value, padding_idx: int, size: int) -> Value:
    """Indices with the padding row's moved out of range, where a scatter drops them."""
    if padding_idx < 0:
        return indices
    is_padding = build.compare(indices, build.full_like(indices, padding_idx), "EQ")
    return build.where(is_padding, build.full_like(indices, size), indices)


def _frequency(indices: Value, size: int, dtype: torch.dtype) -> Value:
    """How often each index occurs among all of them, at least 1."""
    ones = build.full(build.shape_of(indices), 1, dtype)
    counts = scatter_rows(build.full([size], 0, dtype), [0], [indices], 0, ones, "sum")
    counts = hlo.maximum(counts, build.full_like(counts, 1))
    return gather_rows(counts, [0], [indices], 0)


def _each_row(combine: Any, rows: Value, numbers: Value) -> Value:
    """combine(rows, numbers) with one number a row."""
    shape = build.shape_of(rows)
    return combine(rows, build.broadcast_in_dim(numbers, shape, range(build.rank_of(numbers))))


# --- bags --------------------------------------------------------------------------------------


def _bag_of_each(ctx: Context, offsets: Value, n: int) -> Value:
    """Which bag each of n indices is in: the last one that begins at or before it."""
    if 0 in (n, *build.shape_of(offsets)):
        return build.full([n], -1, build.dtype_of(offsets))
    return build.cast(call_jax(ctx, _last_begun, offsets, n=n), build.dtype_of(offsets))


def _last_begun(offsets: jnp.ndarray, n: int) -> jnp.ndarray:
    return jnp.searchsorted(offsets, jnp.arange(n), side="right") - 1


@lowers(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    ctx: Context,
    weight: Value,
    indices: Value,
    offsets: Value,
    scale_grad_by_freq: bool = False,
    mode: int = _SUM,
    sparse: bool = False,
    per_sample_weights: Value | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value, ...]:
    """(output, offset2bag, bag_size, max_indices); the last three serve only the backward rule.

    Eager leaves some of those empty or undefined, by its own fast paths. Here bag_size counts
    each bag's indices less the padding, offset2bag is recomputed where it is promised empty.
    """
    out, offset2bag, bag_size, max_indices = ctx.out
    bags, compute = out.shape[0], computed_in(weight)
    bag = _bag_of_each(ctx, offsets, build.shape_of(indices)[0])
    # Rows of the padding index go to a bag that does not exist: the scatter drops them.
    kept = bag
    if padding_idx >= 0:
        is_padding = build.compare(indices, build.full_like(indices, padding_idx), "EQ")
        kept = build.where(is_padding, build.full_like(bag, bags), bag)
    rows = build.cast(gather_rows(weight, [0], [indices], 0), compute)
    if per_sample_weights is not None:
        rows = _each_row(hlo.multiply, rows, build.cast(per_sample_weights, compute))
    ones = build.full(build.shape_of(indices), 1, offset2bag.dtype)
    size = scatter_rows(build.full([bags], 0, offset2bag.dtype), [0], [kept], 0, ones, "sum")
    winner = build.full(max_indices.shape, 0, max_indices.dtype)
    if mode == _MAX:
        total = build.full(out.shape, build.lowest(compute), compute)
        total = scatter_rows(total, [0], [kept], 0, rows, "max")
        winner = build.cast(_winners(rows, total, indices, kept), max_indices.dtype)
        empty = build.compare(size, build.full_like(size, 0), "EQ")
        total = build.where(
            build.broadcast_in_dim(empty, out.shape, [0]), build.full_like(total, 0), total
        )
    else:
        total = scatter_rows(build.full(out.shape, 0, compute), [0], [kept], 0, rows, "sum")
    if mode == _MEAN:
        counts = build.cast(hlo.maximum(size, build.full_like(size, 1)), compute)
        total = _each_row(hlo.divide, total, counts)
    listed = bag if offset2bag.shape[0] else build.full([0], 0, offset2bag.dtype)
    size = build.pad(size, 0, [0], [bag_size.shape[0] - bags])
    return build.cast(total, out.dtype), listed, size, winner


def _winners(rows: Value, best: Value, indices: Value, bag: Value) -> Value:
    """For each bag and column, the first index whose row has the bag's maximum; -1 for none."""
    shape = build.shape_of(rows)
    if 0 in shape or 0 in build.shape_of(best):
        return build.full(build.shape_of(best), -1, torch.int64)
    wins = build.compare(rows, gather_rows(best, [0], [bag], 0), "EQ")
    position = build.iota(shape, 0, torch.int64)
    position = build.where(wins, position, build.full_like(position, shape[0]))
    none = build.full(build.shape_of(best), shape[0], torch.int64)
    first = scatter_rows(none, [0], [bag], 0, position, "min")
    listed = build.pad(build.cast(indices, torch.int64), -1, [0], [1])
    return gather_rows(listed, [0], [first], 0)


@lowers(aten._embedding_bag_backward.default)
def embedding_bag_backward(
    ctx: Context,
    grad: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    bag_size: Value,
    maximum_indices: Value,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Value | None,
    padding_idx: int = -1,
) -> Value:
    if sparse:
        raise UnsupportedOperator("XLA has no sparse tensors: make the EmbeddingBag sparse=False")
    compute = computed_in(grad)
    zeros = build.full(ctx.out.shape, 0, compute)
    grad = build.cast(grad, compute)
    if mode == _MAX:
        # -1, which no bag's maximum had, is out of range: dropped.
        column = build.iota(build.shape_of(grad), 1, build.dtype_of(maximum_indices))
        total = scatter_rows(zeros, [0, 1], [maximum_indices, column], 0, grad, "sum")
        return build.cast(total, ctx.out.dtype)
    bag = _bag_of_each(ctx, offsets, build.shape_of(indices)[0])
    if mode == _MEAN:
        counts = build.slice_dim(bag_size, 0, 0, build.shape_of(grad)[0])
        counts = hlo.maximum(counts, build.full_like(counts, 1))
        grad = _each_row(hlo.divide, grad, build.cast(counts, compute))
    rows = gather_rows(grad, [0], [bag], 0)
    if per_sample_weights is not None:
        rows = _each_row(hlo.multiply, rows, build.cast(per_sample_weights, compute))
    if scale_grad_by_freq:
        rows = _each_row(hlo.divide, rows, _frequency(indices, num_weights, compute))
    places = _skip_padding(indices, padding_idx, num_weights)
    return build.cast(scatter_rows(zeros, [0], [places], 0, rows, "sum"), ctx.out.dtype)


@lowers(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_per_sample_weights_backward(
    ctx: Context,
    grad: Value,
    weight: Value,
    indices: Value,
    offsets: Value,
    offset2bag: Value,
    mode: int,
    padding_idx: int = -1,
) -> Value:
    compute = computed_in(grad)
    bag = _bag_of_each(ctx, offsets, build.shape_of(indices)[0])
    rows = build.cast(gather_rows(weight, [0], [indices], 0), compute)
    grads = build.cast(gather_rows(grad, [0], [bag], 0), compute)
    products = build.reduce(hlo.multiply(rows, grads), [1], "sum")
    if padding_idx >= 0:
        is_padding = build.compare(indices, build.full_like(indices, padding_idx), "EQ")
        products = build.where(is_padding, build.full_like(products, 0), products)
    return build.cast(products, ctx.out.dtype)
