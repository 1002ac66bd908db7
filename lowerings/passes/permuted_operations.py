"""Clones of StableHLO operations whose operands and results are permuted: their attributes.

A permutation is that of a transpose: dimension i of the new value is dimension permutation[i] of
the old one.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.values import Value

Permutation: TypeAlias = list[int]

# The attributes that have an entry for each dimension, besides `padding`, which has pairs.
_BY_DIMENSION = {
    "stablehlo.pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
    "stablehlo.slice": ("start_indices", "limit_indices", "strides"),
    "stablehlo.reduce_window": (
        "window_dimensions",
        "window_strides",
        "base_dilations",
        "window_dilations",
    ),
    "stablehlo.select_and_scatter": ("window_dimensions", "window_strides"),
}
WINDOWED = frozenset(_BY_DIMENSION)


def identity(rank: int) -> Permutation:
    """The permutation that changes nothing."""
    return list(range(rank))


def integers(op: ir.Operation, name: str) -> list[int]:
    """The elements of an attribute that is an array of 64-bit integers."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def integer_array(values: Sequence[int]) -> ir.Attribute:
    """An attribute that is an array of 64-bit integers."""
    return ir.DenseI64ArrayAttr.get(list(values))


def permuted_attributes(op: ir.Operation, permutation: Permutation) -> dict[str, ir.Attribute]:
    """The attributes of an operation of `WINDOWED`, for permuted operands and a permuted result."""
    changed: dict[str, ir.Attribute] = {}
    for name in _BY_DIMENSION[op.name]:
        if name in op.attributes:
            given = integers(op, name)
            changed[name] = integer_array([given[dim] for dim in permutation])
    if "padding" in op.attributes:
        pairs = np.array(ir.DenseIntElementsAttr(op.attributes["padding"])).reshape(-1, 2)
        pairs = np.ascontiguousarray(pairs[permutation], dtype=np.int64)
        changed["padding"] = ir.DenseIntElementsAttr.get(pairs)
    return changed


def gathered_dimension(op: ir.Operation) -> int | None:
    """The dimension that a gather indexes as `index_select` does; None of any other gather."""
    numbers = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    x, indices = op.operands
    dims, shape = list(numbers.start_index_map), list(x.type.shape)
    if len(dims) != 1 or numbers.index_vector_dim != 1 or indices.type.rank > 2:
        return None
    stays = list(numbers.offset_dims) == [d for d in range(len(shape)) if d not in dims]
    sizes = [1 if d in dims else n for d, n in enumerate(shape)]
    collapsed = list(numbers.collapsed_slice_dims)
    is_whole = collapsed == dims and integers(op, "slice_sizes") == sizes
    return dims[0] if stays and is_whole else None


def permuted_gather_attributes(
    op: ir.Operation, dim: int, permutation: Permutation
) -> dict[str, ir.Attribute]:
    """The attributes of such a gather for a permuted operand, of which it indexes `dim`."""
    others = [d for d in range(len(permutation)) if d != dim]
    numbers = hlo.GatherDimensionNumbers.get(others, [dim], [], [], [dim], 1)
    sizes = integers(op, "slice_sizes")
    permuted = integer_array([sizes[d] for d in permutation])
    return {"dimension_numbers": numbers, "slice_sizes": permuted}


def clone_with(
    op: ir.Operation,
    operands: Sequence[Value],
    types: Sequence[ir.Type],
    changed: dict[str, ir.Attribute],
) -> ir.Operation:
    """Clone an operation to the insertion point, with other operands, types and attributes."""
    new = op.clone().operation
    for index, value in enumerate(operands):
        new.operands[index] = value
    for result, type_ in zip(new.results, types, strict=True):
        result.set_type(type_)
    for name, attribute in changed.items():
        new.attributes[name] = attribute
    return new


def merged_dimensions(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]]:
    """Which dimensions of a reshape become which: the smallest runs of equally many elements.

    None are found where there are no elements, or where a dimension of size 1 belongs to no run.
    """
    if 0 in old:
        return []
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + 1, j + 1
        if not before or not after:
            return []
        while (have := math.prod(old[d] for d in before)) != (
            want := math.prod(new[d] for d in after)
        ):
            if have < want:
                before.append(i)
                i += 1
            else:
                after.append(j)
                j += 1
        groups.append((before, after))
    return groups
