"""Rule of bounded programs: what is arbitrary is not scattered."""

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.alignment import Row
from xla_dynamo.lowerings.bounded.context import BoundedContext, allow, bounds, refuse_dynamic
from xla_dynamo.lowerings.bounded.dimensions import Dim, is_free, joined
from xla_dynamo.lowerings.bounded.extents import Refused
from xla_dynamo.lowerings.builders import build


@bounds("stablehlo.scatter")
def scatter(ctx: BoundedContext, row: Row) -> None:
    """An update without elements of the graph gets an index outside, where XLA writes nothing.

    Indices into a dynamic dimension are the graph's own, so they are among its elements.
    """
    allow(row)
    count = len(row.op.results)
    numbers = hlo.ScatterDimensionNumbers(row.op.attributes["scatter_dimension_numbers"])
    indices, vector = list(ctx.operand(row, count)), numbers.index_vector_dim
    if vector < len(indices):
        refuse_dynamic((indices[vector],), "the number of its indices is dynamic")
    index_dims = [d for d in range(len(indices)) if d != vector]
    batching = dict(
        zip(numbers.input_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    windows = list(numbers.update_window_dims)
    whole: dict[int, Dim] = {}
    for i in range(count):
        dims, updates = ctx.operand(row, i), ctx.operand(row, count + 1 + i)
        scattered = [d for d in range(len(updates)) if d not in windows]
        for index_dim, d in zip(index_dims, scattered, strict=True):
            whole[index_dim] = joined([whole.get(index_dim, indices[index_dim]), updates[d]])
        for d, index_dim in batching.items():
            whole[index_dim] = joined([whole[index_dim], dims[d]])
        found, rest = list(dims), iter(windows)
        for d in range(len(dims)):
            if d in numbers.inserted_window_dims or d in batching:
                continue
            window = next(rest)
            if row.operand(i)[d] == row.operand(count + 1 + i)[window]:
                found[d] = joined([dims[d], updates[window]])
            elif is_free(dims[d]) or is_free(updates[window]):
                raise Refused("it writes a part of a dynamic dimension")
        ctx.dims[row.op.results[i]] = tuple(found)
    dynamic_dims = {d: dim for d, dim in whole.items() if is_free(dim)}
    if dynamic_dims:
        given = row.op.operands[count]
        dtype = build.dtype_of(given)
        outside = -1 if dtype.is_signed else torch.iinfo(dtype).max
        row.op.operands[count] = ctx.masks.masked(given, dynamic_dims, build.scalar(outside, dtype))
        for name in ("indices_are_sorted", "unique_indices"):
            row.op.attributes[name] = ir.BoolAttr.get(False)
