"""Embedding tables: rows looked up, and their gradients."""

from typing import Any

import jax.numpy as jnp
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.indexing.gather_scatter import gather_rows, scatter_rows
from xla_dynamo.lowerings.table import Context, aten, lowers


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
    indices = skip_padding(indices, padding_idx, num_weights)
    rows = build.cast(grad_output, computed_in(grad_output))
    if scale_grad_by_freq:
        rows = each_row(hlo.divide, rows, frequency(indices, num_weights, build.dtype_of(rows)))
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


def is_padding(indices: Value, padding_idx: int) -> Value | None:
    """Which indices are the padding row's; None where there is no such row."""
    if padding_idx < 0:
        return None
    return build.compare(indices, build.full_like(indices, padding_idx), "EQ")


def skip_padding(indices: Value, padding_idx: int, size: int) -> Value:
    """Indices with the padding row's moved out of range, where a scatter drops them."""
    padding = is_padding(indices, padding_idx)
    if padding is None:
        return indices
    return build.where(padding, build.full_like(indices, size), indices)


def frequency(indices: Value, size: int, dtype: torch.dtype) -> Value:
    """How often each index occurs among all of them, at least 1."""
    ones = build.full(build.shape_of(indices), 1, dtype)
    counts = scatter_rows(build.full([size], 0, dtype), [0], [indices], 0, ones, "sum")
    counts = hlo.maximum(counts, build.full_like(counts, 1))
    return gather_rows(counts, [0], [indices], 0)


def each_row(combine: Any, rows: Value, numbers: Value) -> Value:
    """combine(rows, numbers) with one number a row."""
    shape = build.shape_of(rows)
    return combine(rows, build.broadcast_in_dim(numbers, shape, range(build.rank_of(numbers))))
