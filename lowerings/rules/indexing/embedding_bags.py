"""Bags of rows of embedding tables, and their gradients."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.known_integers import known_integers
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.indexing.embedding import (
    each_row,
    frequency,
    is_padding,
    skip_padding,
)
from xla_dynamo.lowerings.rules.indexing.gather_scatter import gather_rows, scatter_rows
from xla_dynamo.lowerings.table import Context, aten, lowers

_SUM, _MEAN, _MAX = range(3)


def _bag_of_each(ctx: Context, offsets: Value, bags: int, n: int, each: int) -> Value:
    """Which bag each of n indices is in: the last one that begins at or before it.

    `each` is the size of every bag, if that is known, else 0.
    """
    if each:
        bag = build.iota([bags, each], 0, build.dtype_of(offsets))
        return build.reshape(bag, [n])
    if 0 in (n, *build.shape_of(offsets)):
        return build.full([n], -1, build.dtype_of(offsets))
    return build.cast(call_jax(ctx, _last_begun, offsets, n=n), build.dtype_of(offsets))


def _last_begun(offsets: jnp.ndarray, n: int) -> jnp.ndarray:
    return jnp.searchsorted(offsets, jnp.arange(n), side="right") - 1


def _size_of_each(offsets: Value, bags: int, n: int) -> int:
    """How many of n indices each bag has, if all are known to have as many; else 0.

    That is so for indices of two dimensions, whose offsets torch counts up.
    """
    each, rest = divmod(n, bags) if bags else (0, 0)
    starts = known_integers(offsets)
    if rest or starts is None or not np.array_equal(starts, np.arange(len(starts)) * each):
        return 0
    return each


class _Bags(NamedTuple):
    """Indices in bags.

    Attributes:
        of_each: which bag each index is in.
        number: how many bags there are.
        each: how many indices each bag has, if that is known, else 0.
        is_padding: which indices are left out, or None.
    """

    of_each: Value
    number: int
    each: int
    is_padding: Value | None

    def kept(self) -> Value:
        """Which bag each index is in, for padding one that does not exist: a scatter drops it."""
        if self.is_padding is None:
            return self.of_each
        none = build.full_like(self.of_each, self.number)
        return build.where(self.is_padding, none, self.of_each)

    def combine(self, x: Value, kind: str, first: Value) -> Value:
        """Combine the elements of x over each bag, beginning with a first value for each bag."""
        if not self.each:
            return scatter_rows(first, [0], [self.kept()], 0, x, kind)
        shape = build.shape_of(first)
        whole = [self.number, self.each, *shape[1:]]
        x = build.reshape(x, whole)
        if self.is_padding is not None:
            dropped = build.reshape(self.is_padding, whole[:2])
            dropped = build.broadcast_in_dim(dropped, whole, [0, 1])
            others = build.broadcast_in_dim(first, whole, [0, *range(2, len(whole))])
            x = build.where(dropped, others, x)
        return build.reduce(x, [1], kind)


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
    n, count, compute = build.shape_of(indices)[0], out.shape[0], computed_in(weight)
    each = _size_of_each(offsets, count, n)
    bag = _bag_of_each(ctx, offsets, count, n, each)
    bags = _Bags(bag, count, each, is_padding(indices, padding_idx))
    rows = build.cast(gather_rows(weight, [0], [indices], 0), compute)
    if per_sample_weights is not None:
        rows = each_row(hlo.multiply, rows, build.cast(per_sample_weights, compute))
    ones, none = (build.full([k], v, offset2bag.dtype) for k, v in ((n, 1), (count, 0)))
    size = bags.combine(ones, "sum", none)
    winner = build.full(max_indices.shape, 0, max_indices.dtype)
    if mode == _MAX:
        total, winner = _maxima(rows, indices, bags, max_indices.dtype)
        empty = build.compare(size, build.full_like(size, 0), "EQ")
        empty = build.broadcast_in_dim(empty, out.shape, [0])
        total = build.where(empty, build.full_like(total, 0), total)
    else:
        total = bags.combine(rows, "sum", build.full(out.shape, 0, compute))
    if mode == _MEAN:
        counts = build.cast(hlo.maximum(size, build.full_like(size, 1)), compute)
        total = each_row(hlo.divide, total, counts)
    listed = bag if offset2bag.shape[0] else build.full([0], 0, offset2bag.dtype)
    size = build.pad(size, 0, [0], [bag_size.shape[0] - count])
    return build.cast(total, out.dtype), listed, size, winner


def _maxima(rows: Value, indices: Value, bags: _Bags, dtype: torch.dtype) -> tuple[Value, Value]:
    """For each bag and column the maximum, and the first index whose row has it; -1 for none.

    Eager keeps what is greater than all before, or comes first: no number replaces a NaN that does.
    """
    n, width = build.shape_of(rows)
    shape, bag = [bags.number, width], bags.kept()
    lowest = build.full(shape, build.lowest(build.dtype_of(rows)), build.dtype_of(rows))
    if 0 in (n, *shape):
        return lowest, build.full(shape, -1, dtype)
    index = build.iota([n], 0, torch.int64)
    first = bags.combine(index, "min", build.full([bags.number], n, torch.int64))
    is_later = build.compare(index, gather_rows(first, [0], [bag], 0), "NE")
    is_later = build.broadcast_in_dim(is_later, [n, width], [0])
    is_nan = build.compare(rows, rows, "NE")
    small = build.full_like(rows, build.lowest(build.dtype_of(rows)))
    rows = build.where(hlo.and_(is_nan, is_later), small, rows)
    best = bags.combine(rows, "max", lowest)
    is_nan = build.compare(rows, rows, "NE")
    wins = hlo.or_(build.compare(rows, gather_rows(best, [0], [bag], 0), "EQ"), is_nan)
    position = build.iota([n, width], 0, torch.int64)
    position = build.where(wins, position, build.full_like(position, n))
    winner = bags.combine(position, "min", build.full(shape, n, torch.int64))
    listed = build.pad(build.cast(indices, torch.int64), -1, [0], [1])
    return best, build.cast(gather_rows(listed, [0], [winner], 0), dtype)


def _bag_in_backward(ctx: Context, grad: Value, indices: Value, offsets: Value) -> Value:
    count, n = build.shape_of(grad)[0], build.shape_of(indices)[0]
    return _bag_of_each(ctx, offsets, count, n, _size_of_each(offsets, count, n))


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
    bag = _bag_in_backward(ctx, grad, indices, offsets)
    if mode == _MEAN:
        counts = build.slice_dim(bag_size, 0, 0, build.shape_of(grad)[0])
        counts = hlo.maximum(counts, build.full_like(counts, 1))
        grad = each_row(hlo.divide, grad, build.cast(counts, compute))
    rows = gather_rows(grad, [0], [bag], 0)
    if per_sample_weights is not None:
        rows = each_row(hlo.multiply, rows, build.cast(per_sample_weights, compute))
    if scale_grad_by_freq:
        rows = each_row(hlo.divide, rows, frequency(indices, num_weights, compute))
    kept = skip_padding(indices, padding_idx, num_weights)
    return build.cast(scatter_rows(zeros, [0], [kept], 0, rows, "sum"), ctx.out.dtype)


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
    bag = _bag_in_backward(ctx, grad, indices, offsets)
    rows = build.cast(gather_rows(weight, [0], [indices], 0), compute)
    grads = build.cast(gather_rows(grad, [0], [bag], 0), compute)
    products = build.reduce(hlo.multiply(rows, grads), [1], "sum")
    padding = is_padding(indices, padding_idx)
    if padding is not None:
        products = build.where(padding, build.full_like(products, 0), products)
    return build.cast(products, ctx.out.dtype)
