"""Values in other shapes: reshaped, broadcast, sliced, padded, joined."""

from collections.abc import Sequence

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import permuted_type, tensor_type
from xla_dynamo.lowerings.builders.values import (
    Number,
    Value,
    defining_name,
    dtype_of,
    is_value,
    rank_of,
    scalar,
    shape_of,
    source_of,
)


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in row-major order under another shape (no -1)."""
    if shape_of(x) == tuple(shape):
        return x
    return hlo.reshape(tensor_type(tuple(shape), dtype_of(x)), x)


def expand_dims(x: Value, *dims: int) -> Value:
    """Insert dimensions of size 1, which become these (non-negative, ascending) of the result."""
    shape = list(shape_of(x))
    for dim in dims:
        shape.insert(dim, 1)
    return reshape(x, shape)


def transpose(x: Value, permutation: Sequence[int]) -> Value:
    """x.permute(permutation), of non-negative dims: a transpose only where nothing else will do."""
    source, given = source_of(x)
    permutation = [given[dim] for dim in permutation]
    if permutation == sorted(permutation):
        return source
    op, name = source.owner, defining_name(source)
    if name == "stablehlo.broadcast_in_dim":
        return _permuted_broadcast(op, permutation)
    if name == "stablehlo.constant" and op.attributes["value"].is_splat:
        splat, type_ = op.attributes["value"], permuted_type(source.type, permutation)
        return hlo.constant(ir.DenseElementsAttr.get_splat(type_, splat.get_splat_value()))
    return hlo.transpose(source, permutation)


def _permuted_broadcast(op: ir.Operation, permutation: list[int]) -> Value:
    """A broadcast to the transpose of its result."""
    (source,) = op.operands
    given = ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])
    dims = [permutation.index(d) for d in given]
    if dims != sorted(dims):
        ascending = sorted(range(len(dims)), key=dims.__getitem__)
        source, dims = transpose(source, ascending), sorted(dims)
    return hlo.broadcast_in_dim(permuted_type(op.results[0].type, permutation), source, dims)


def broadcast_in_dim(x: Value, shape: Sequence[int], dims: Sequence[int]) -> Value:
    """Dimension i of x becomes dimension dims[i] of the result; sizes of 1 are stretched."""
    return hlo.broadcast_in_dim(tensor_type(tuple(shape), dtype_of(x)), x, list(dims))


def broadcast_to(x: Value, shape: Sequence[int]) -> Value:
    """x.expand(shape), with dimensions aligned at the right."""
    if shape_of(x) == tuple(shape):
        return x
    lead = len(shape) - rank_of(x)
    return broadcast_in_dim(x, shape, range(lead, len(shape)))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape of tensors that are broadcast together."""
    return tuple(torch.broadcast_shapes(*shapes))


def slice_(
    x: Value, start: Sequence[int], stop: Sequence[int], step: Sequence[int] | None = None
) -> Value:
    """x[start:stop:step] with one entry a dimension, in bounds."""
    return hlo.slice(x, list(start), list(stop), list(step or [1] * rank_of(x)))


def slice_dim(x: Value, dim: int, start: int, stop: int, step: int = 1) -> Value:
    """A slice along one dimension, in bounds."""
    starts, stops, steps = [0] * rank_of(x), list(shape_of(x)), [1] * rank_of(x)
    starts[dim], stops[dim], steps[dim] = start, stop, step
    return slice_(x, starts, stops, steps)


def slice_at(x: Value, dim: int, index: int | Value) -> Value:
    """The slice of size 1 at an index of a dimension; computed ones (int64) clamp into bounds."""
    if not is_value(index):
        return slice_dim(x, dim, index, index + 1)
    sizes = [1 if d == dim else n for d, n in enumerate(shape_of(x))]
    return hlo.dynamic_slice(x, _starts(x, dim, index), sizes)


def pad(
    x: Value,
    value: Number | Value,
    low: Sequence[int],
    high: Sequence[int],
    interior: Sequence[int] | None = None,
) -> Value:
    """Pad each dimension at its low and high end (negative amounts crop) and between elements."""
    fill = value if is_value(value) else scalar(value, dtype_of(x))
    return hlo.pad(x, fill, list(low), list(high), list(interior or [0] * rank_of(x)))


def pad_dim(x: Value, dim: int, low: int, high: int, interior: int = 0) -> Value:
    """Pad one dimension with zeros at its ends and between elements; negative ends crop it."""
    if not (low or high or interior):
        return x
    at = [[n if d == dim else 0 for d in range(rank_of(x))] for n in (low, high, interior)]
    return pad(x, 0, *at)


def concatenate(values: Sequence[Value], dim: int) -> Value:
    """torch.cat of values of one dtype."""
    return values[0] if len(values) == 1 else hlo.concatenate(list(values), dim)


def reverse(x: Value, dims: Sequence[int]) -> Value:
    """Turn dimensions back to front."""
    return hlo.reverse(x, list(dims)) if dims else x


def update_slice(x: Value, part: Value, dim: int, start: int | Value) -> Value:
    """Write part over x from `start` along one dimension; both agree in the others."""
    if shape_of(part) == shape_of(x):
        return part
    return hlo.dynamic_update_slice(x, part, _starts(x, dim, start))


def _starts(x: Value, dim: int, start: int | Value) -> list[Value]:
    """Where a slice starts in every dimension."""
    starts = [scalar(0, torch.int64)] * rank_of(x)
    starts[dim] = start if is_value(start) else scalar(start, torch.int64)
    return starts
