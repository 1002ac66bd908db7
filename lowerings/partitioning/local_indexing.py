"""Gather and scatter on shards: indices may be sharded, and dimensions that are taken whole.

Where the rows of a table are sharded, each device takes or changes those that it has.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.reductions import is_neutral, reduction_of
from xla_dynamo.lowerings.builders.values import Value, dtype_of, rank_of
from xla_dynamo.lowerings.partitioning.local_collectives import COMBINERS, first_of
from xla_dynamo.lowerings.partitioning.shards import Axes, Shards, require
from xla_dynamo.lowerings.passes.permuted_operations import integer_array, integers


def _gather(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    """Indices may be sharded, and dimensions of the operand that are taken whole."""
    x, indices = op.operands
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    collapsed, stacked = list(numbers.collapsed_slice_dims), list(numbers.operand_batching_dims)
    sizes = integers(op, "slice_sizes")
    axes, of_indices = shards.axes(x), shards.axes(indices)
    for d, of_index in zip(stacked, numbers.start_indices_batching_dims, strict=True):
        require(axes[d] == of_indices[of_index], op)
    for d in shards.sharded_dims(x):
        if d not in stacked:
            require(d not in collapsed and sizes[d] == shards.shape(x)[d], op)
            sizes[d] = build.shape_of(x)[d]
    op.attributes["slice_sizes"] = integer_array(sizes)
    vector, offsets = numbers.index_vector_dim, list(numbers.offset_dims)
    require(vector >= len(of_indices) or not of_indices[vector], op)
    taken = iter([names for d, names in enumerate(axes) if d not in (*collapsed, *stacked)])
    others = iter([names for d, names in enumerate(of_indices) if d != vector])
    rank = rank_of(op.results[0])
    return [tuple(next(taken if d in offsets else others) for d in range(rank))]


def split_table(shards: Shards, op: Any) -> int | None:
    """The dimension that single indices count in, where the rows are sharded; else None."""
    x, indices = op.operands
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    (dim, *others), axes = list(numbers.start_index_map), shards.axes(x)
    if others or not axes[dim] or list(numbers.collapsed_slice_dims) != [dim]:
        return None
    if list(numbers.operand_batching_dims) or dtype_of(x) is torch.bool:
        return None
    # Rows are taken here, so that the other dimensions and the indices have axes of their own.
    used = {name for d, names in enumerate(axes) if d != dim for name in names}
    used |= {name for names in shards.axes(indices) for name in names}
    return dim if not used & {*axes[dim]} else None


def _local_indices(shards: Shards, x: Value, dim: int, indices: Value) -> Value:
    """Indices, as int64, into this device's shard."""
    first = first_of(shards, shards.axes(x)[dim], build.shape_of(x)[dim])
    wide = build.cast(indices, torch.int64)
    return hlo.subtract(wide, build.broadcast_to(first, build.shape_of(indices)))


def rows_here(shards: Shards, op: Any) -> Value:
    """The rows that this device has, and zeros for the others: parts of what is gathered."""
    x, indices = op.operands
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    (dim,) = numbers.start_index_map
    whole, here = shards.shape(x)[dim], build.shape_of(x)[dim]
    dtype = dtype_of(indices)
    # As XLA does, indices are clamped to those of the whole table.
    limits = [build.full((), n, dtype) for n in (0, whole - 1)]
    clamped = hlo.clamp(limits[0], indices, limits[1])
    local = _local_indices(shards, x, dim, clamped)
    zero, end = build.full_like(local, 0), build.full_like(local, here)
    is_here = hlo.and_(
        hlo.compare(local, zero, hlo.ComparisonDirectionAttr.get("GE")),
        hlo.compare(local, end, hlo.ComparisonDirectionAttr.get("LT")),
    )
    sizes = integers(op, "slice_sizes")
    for d in shards.sharded_dims(x):
        if d != dim:
            require(sizes[d] == shards.shape(x)[d], op)
            sizes[d] = build.shape_of(x)[d]
    rows = hlo.gather(
        x,
        hlo.select(is_here, local, zero),
        op.attributes["dimension_numbers"],
        integer_array(sizes),
    )
    offsets, vector = list(numbers.offset_dims), numbers.index_vector_dim
    of_indices = [n for d, n in enumerate(build.shape_of(indices)) if d != vector]
    places = [d for d in range(rank_of(rows)) if d not in offsets]
    mask = build.broadcast_in_dim(build.reshape(is_here, of_indices), build.shape_of(rows), places)
    taken = hlo.select(mask, rows, build.full_like(rows, 0))
    shards.note_parts([taken], [shards.axes(x)[dim]], "stablehlo.add")
    return taken


def _on_first(shards: Shards, x: Value, names: Sequence[str]) -> Value:
    """A value on the first device along axes, and zeros on the others."""
    first, zero = first_of(shards, names, 1), build.full((), 0, torch.int64)
    is_first = hlo.compare(first, zero, hlo.ComparisonDirectionAttr.get("EQ"))
    return hlo.select(is_first, x, build.full_like(x, 0))


def _scatter(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    """Indices and updates may be sharded where sums begin at zero, and whole dimensions of all."""
    operands = list(op.operands)
    require(len(operands) == 3, op)
    x, indices, updates = operands
    numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    stacked, of_stack = (
        list(numbers.input_batching_dims),
        list(numbers.scatter_indices_batching_dims),
    )
    inserted, windows = list(numbers.inserted_window_dims), list(numbers.update_window_dims)
    axes, of_updates, of_indices = map(shards.axes, (x, updates, indices))
    for d, of_index in zip(stacked, of_stack, strict=True):
        require(axes[d] == of_indices[of_index], op)
    kept = [d for d in range(len(axes)) if d not in (*inserted, *stacked)]
    for d, window in zip(kept, windows, strict=True):
        require(axes[d] == of_updates[window], op)
        same = shards.shape(x)[d] == shards.shape(updates)[window]
        require(not axes[d] or same, op)
    for d in inserted:
        if axes[d]:  # indices of rows that are elsewhere are out of bounds here, and left out
            used = {name for names in (*of_updates, *of_indices) for name in names}
            alone = list(numbers.scattered_dims_to_operand_dims) == [d]
            require(alone and not used & {*axes[d]}, op)
            op.operands[1] = _local_indices(shards, x, d, indices)
    vector = numbers.index_vector_dim
    require(vector >= len(of_indices) or not of_indices[vector], op)
    scattered = [names for d, names in enumerate(of_updates) if d not in windows]
    require(scattered == [n for d, n in enumerate(of_indices) if d != vector], op)
    scattered = [n for d, n in enumerate(of_indices) if d not in (vector, *of_stack)]
    if any(scattered):
        reduction = reduction_of(op)
        require(reduction in COMBINERS, op)
        if not is_neutral(x, reduction):
            require(reduction == "stablehlo.add", op)
            op.operands[0] = _on_first(shards, x, [n for names in scattered for n in names])
        shards.note_parts(op.results, scattered, reduction)
    return [axes]


INDEXING = {"gather": _gather, "scatter": _scatter}
