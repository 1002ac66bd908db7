"""Operations of XLA's builder that move elements, in StableHLO."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value, dtype_of, rank_of, shape_of
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.xla_builder.table import operation


@operation("Reshape")
def reshape(
    x: Value,
    sizes: Sequence[int],
    dimensions: Sequence[int] | None = None,
    inferred_dimension: int | None = None,
) -> Value:
    """Other sizes; `dimensions` are permuted before, and one dimension's size may be inferred."""
    if dimensions is not None:
        x = hlo.transpose(x, list(dimensions))
    sizes = list(sizes)
    if dimensions is None and inferred_dimension is not None and inferred_dimension >= 0:
        others = math.prod(n for d, n in enumerate(sizes) if d != inferred_dimension)
        sizes[inferred_dimension] = math.prod(shape_of(x)) // others if others else 0
    return hlo.reshape(tensor_type(sizes, dtype_of(x)), x)


@operation("DynamicReshape")
def dynamic_reshape(x: Value, sizes: Sequence[int]) -> Value:
    """Other sizes."""
    return reshape(x, sizes)


@operation("Broadcast")
def broadcast(x: Value, sizes: Sequence[int]) -> Value:
    """More dimensions, before those of x."""
    sizes = (*sizes, *shape_of(x))
    return build.broadcast_in_dim(x, sizes, range(len(sizes) - rank_of(x), len(sizes)))


@operation("BroadcastInDim")
def broadcast_in_dim(x: Value, sizes: Sequence[int], dimensions: Sequence[int]) -> Value:
    """Dimension i becomes dimension `dimensions[i]` of sizes; a size of 1 is repeated."""
    return build.broadcast_in_dim(x, sizes, dimensions)


@operation("Transpose")
def transpose(x: Value, permutation: Sequence[int]) -> Value:
    """Dimension i of the result is dimension `permutation[i]`."""
    return hlo.transpose(x, list(permutation))


@operation("Rev")
def rev(x: Value, dimensions: Sequence[int]) -> Value:
    """The elements along dimensions in reverse order."""
    return hlo.reverse(x, list(dimensions))


@operation("Pad")
def pad(x: Value, value: Value, config: Sequence[Sequence[int]]) -> Value:
    """Padded by a value: low, high and interior for each dimension."""
    low, high, interior = zip(*config, strict=True) if config else ((), (), ())
    return hlo.pad(x, value, list(low), list(high), list(interior))


@operation("ConcatInDim")
def concat_in_dim(*values: Value, dimension: int) -> Value:
    """One value behind the other along a dimension."""
    return hlo.concatenate(list(values), dimension)


@operation("Slice")
def slice_(
    x: Value,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Value:
    """The elements from starts to below limits, by strides."""
    steps = [1] * len(start_indices) if strides is None else list(strides)
    return hlo.slice(x, list(start_indices), list(limit_indices), steps)


@operation("SliceInDim")
def slice_in_dim(
    x: Value, start_index: int, limit_index: int, dimno: int, stride: int = 1
) -> Value:
    """The elements from a start to below a limit along one dimension."""
    starts, limits, strides = [0] * rank_of(x), list(shape_of(x)), [1] * rank_of(x)
    starts[dimno], limits[dimno], strides[dimno] = start_index, limit_index, stride
    return hlo.slice(x, starts, limits, strides)


@operation("DynamicSlice")
def dynamic_slice(x: Value, start_indices: Sequence[Value], slice_sizes: Sequence[int]) -> Value:
    """The elements from computed starts, of given sizes."""
    return hlo.dynamic_slice(x, list(start_indices), list(slice_sizes))


@operation("DynamicUpdateSlice")
def dynamic_update_slice(x: Value, update: Value, start_indices: Sequence[Value]) -> Value:
    """A copy with other elements from computed starts on."""
    return hlo.dynamic_update_slice(x, update, list(start_indices))


@operation("Gather")
def gather(
    x: Value,
    start_indices: Value,
    slice_sizes: Sequence[int] | None = None,
    offset_dims: Sequence[int] | None = None,
    collapsed_slice_dims: Sequence[int] | None = None,
    start_index_map: Sequence[int] | None = None,
    index_vector_dim: int | None = None,
    indices_are_sorted: bool | None = None,
) -> Value:
    """Slices of x that begin at computed indices.

    Without `slice_sizes` they are 1 in the dimensions that an index is for, whole in the others.
    """
    if slice_sizes is None:
        by_index = {*(start_index_map or ()), *(collapsed_slice_dims or ())}
        slice_sizes = [1 if d in by_index else n for d, n in enumerate(shape_of(x))]
    numbers = hlo.GatherDimensionNumbers.get(
        list(offset_dims or ()),
        list(collapsed_slice_dims or ()),
        [],
        [],
        list(start_index_map or ()),
        index_vector_dim or 0,
    )
    return hlo.gather(
        x, start_indices, numbers, list(slice_sizes), indices_are_sorted=bool(indices_are_sorted)
    )


@operation("GetDimensionSize")
def get_dimension_size(x: Value, dimension: int) -> Value:
    """The size of a dimension, s32."""
    return build.scalar(shape_of(x)[dimension], torch.int32)


@operation("SetDimensionSize")
def set_dimension_size(x: Value, size: Value, dimension: int) -> Value:
    """The value itself, if the size is the constant that the dimension has.

    Raises:
        NotImplementedError: it is not: values have static sizes here.
    """
    given = _integer_of(size)
    if given != shape_of(x)[dimension]:
        raise NotImplementedError(
            f"set_dimension_size of dimension {dimension}, of size {shape_of(x)[dimension]}, to "
            "another or a computed one: values have static sizes here; use slice or pad"
        )
    return x


def _integer_of(x: Value) -> int | None:
    """The integer that a value is, if it is a constant."""
    if build.defining_name(x) != "stablehlo.constant":
        return None
    return int(np.asarray(ir.DenseIntElementsAttr(x.owner.attributes["value"])).flatten()[0])
