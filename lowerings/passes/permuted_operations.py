"""Operations of StableHLO written anew for values that have their dimensions in another order.

An order is a list of dimensions: those of the value that there was, from the outermost of the new
one to the innermost.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

Value: TypeAlias = ir.Value
Order: TypeAlias = list[int]


def names(dialect: str, text: str) -> frozenset[str]:
    """The names of operations, out of a text with a blank between them."""
    return frozenset(f"{dialect}.{name}" for name in text.split())


ELEMENTWISE = names(
    "stablehlo",
    "abs add and atan2 cbrt ceil clamp compare convert cosine divide exponential "
    "exponential_minus_one floor is_finite log log_plus_one logistic maximum minimum multiply "
    "negate not or power remainder round_nearest_afz round_nearest_even rsqrt select sign sine "
    "sqrt subtract tan tanh xor",
) | names("chlo", "erf erfc erf_inv square")
# Operations with attributes that have an entry a dimension, besides `padding` in pairs.
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


def identity(rank: int) -> Order:
    """The order that changes nothing."""
    return list(range(rank))


def numbers(op: ir.Operation, name: str) -> list[int]:
    """An attribute that is an array of 64-bit integers."""
    return list(ir.DenseI64ArrayAttr(op.attributes[name]))


def array(values: Sequence[int]) -> ir.Attribute:
    """Such an attribute."""
    return ir.DenseI64ArrayAttr.get(list(values))


def attributes_in_order(op: ir.Operation, order: Order) -> dict[str, ir.Attribute]:
    """The attributes of an operation of `WINDOWED`, for operands and a result in this order."""
    changed: dict[str, ir.Attribute] = {}
    for name in _BY_DIMENSION[op.name]:
        if name in op.attributes:
            given = numbers(op, name)
            changed[name] = array([given[dim] for dim in order])
    if "padding" in op.attributes:
        pairs = np.array(ir.DenseIntElementsAttr(op.attributes["padding"])).reshape(-1, 2)
        pairs = np.ascontiguousarray(pairs[order], dtype=np.int64)
        changed["padding"] = ir.DenseIntElementsAttr.get(pairs)
    return changed


def gathered_dimension(op: ir.Operation) -> int | None:
    """The dimension of which a gather picks places, where it is one and the same in the result."""
    given, (x, places) = hlo.GatherDimensionNumbers(op.attributes["dimension_numbers"]), op.operands
    dims, shape = list(given.start_index_map), list(x.type.shape)
    if len(dims) != 1 or given.index_vector_dim != 1 or places.type.rank > 2:
        return None
    stays = list(given.offset_dims) == [d for d in range(len(shape)) if d not in dims]
    sizes = [1 if d in dims else n for d, n in enumerate(shape)]
    is_whole = list(given.collapsed_slice_dims) == dims and numbers(op, "slice_sizes") == sizes
    return dims[0] if stays and is_whole else None


def gather_in_order(op: ir.Operation, dim: int, order: Order) -> dict[str, ir.Attribute]:
    """The attributes of such a gather, for an operand in this order; `dim` is where it picks."""
    others = [d for d in range(len(order)) if d != dim]
    given = hlo.GatherDimensionNumbers.get(others, [dim], [], [], [dim], 1)
    sizes = numbers(op, "slice_sizes")
    return {"dimension_numbers": given, "slice_sizes": array([sizes[d] for d in order])}


def rewritten(
    op: ir.Operation,
    operands: Sequence[Value],
    types: Sequence[ir.Type],
    changed: dict[str, ir.Attribute],
) -> ir.Operation:
    """The same operation, at the insertion point, with other operands, results and attributes."""
    new = op.clone().operation
    for index, value in enumerate(operands):
        new.operands[index] = value
    for result, type_ in zip(new.results, types, strict=True):
        result.set_type(type_)
    for name, attribute in changed.items():
        new.attributes[name] = attribute
    return new


def merged_dimensions(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]]:
    """Which dimensions of a reshape become which: the smallest runs that have as many elements.

    None are found where there are no elements, or dimensions of size 1 that belong nowhere.
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
