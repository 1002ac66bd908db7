"""Values with merged dimensions: how a dimension splits, and values whose dimensions are split.

A *split* of a shape has, for each dimension, the sizes of the dimensions that were merged into it,
in row-major order: ((2, 5), (16,)) is the split of [10, 16] that was made from [2, 5, 16]. Sizes of
1 are left out, and ((16,),) is the split of a dimension that was never merged.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.values import Value, defining_name, rank_of, shape_of
from xla_dynamo.lowerings.passes.permuted_operations import clone_with, integers

Sizes: TypeAlias = tuple[int, ...]
Split: TypeAlias = tuple[Sizes, ...]
# Of a dimension along which all elements are equal, or known: any split will do.
Wish: TypeAlias = Sizes | None


def unsplit(shape: Iterable[int]) -> Split:
    """The split of a shape no dimension of which was merged."""
    return tuple((size,) for size in shape)


def is_merged(split: Iterable[Wish]) -> bool:
    """Whether a dimension was merged."""
    return any(sizes is not None and len(sizes) > 1 for sizes in split)


def split_shape(split: Split) -> list[int]:
    """The shape that has all dimensions split."""
    return [size for sizes in split for size in sizes]


def split_dimensions(split: Split) -> list[list[int]]:
    """The dimensions of the split shape that each dimension becomes."""
    counter = itertools.count()
    return [[next(counter) for _ in sizes] for sizes in split]


def _strides(sizes: Sequence[int]) -> list[int]:
    """How many elements lie behind each boundary between dimensions, both ends included."""
    return [math.prod(sizes[index:]) for index in range(len(sizes) + 1)]


def _sizes_between(strides: Iterable[int]) -> Sizes | None:
    """The sizes that have these strides, ends included; None if one is no multiple of the next."""
    descending = sorted(set(strides), reverse=True)
    if any(outer % inner for outer, inner in itertools.pairwise(descending)):
        return None
    return tuple(outer // inner for outer, inner in itertools.pairwise(descending)) or (1,)


def split_of_reshape(old: Sequence[int], new: Sequence[int]) -> Split:
    """The split of `new` by the dimensions of `old`, where those do not cross its own.

    A shape without elements is not split: the same strides would belong to several dimensions.
    """
    if 0 in new:
        return unsplit(new)
    boundaries, ends = _strides(old), _strides(new)
    found = []
    for size, (outer, inner) in zip(new, itertools.pairwise(ends), strict=True):
        within = [stride for stride in boundaries if inner < stride < outer]
        found.append(_sizes_between([outer, *within, inner]) or (size,))
    return tuple(found)


def common_split(wishes: Iterable[Wish]) -> Wish:
    """The finest split of a dimension that all these refine; None if any split will do."""
    given = [sizes for sizes in wishes if sizes is not None]
    if not given:
        return None
    if any(len(sizes) == 1 for sizes in given):
        return (math.prod(given[0]),)
    shared = set.intersection(*(set(_strides(sizes)) for sizes in given))
    return _sizes_between(shared)  # a subset of one's strides, so each is a multiple of the next


class MergedValues:
    """The values of a block whose dimensions are known to be merged, and their split forms.

    Attributes:
        sources: by a merged value, one with the same elements in row-major order, and the split.
        computed: by a value that elementwise operations computed, what they wish of its split.
    """

    def __init__(self) -> None:
        self.sources: dict[Value, tuple[Value, Split]] = {}
        self.computed: dict[Value, list[Wish]] = {}
        self._split: dict[tuple[Value, Split], Value] = {}

    def wishes(self, value: Value) -> list[Wish]:
        """What a value wishes of the split of each of its dimensions."""
        if value in self.sources:
            return list(self.sources[value][1])
        if value in self.computed:
            return list(self.computed[value])
        name, op = defining_name(value), value.owner
        wishes: list[Wish] = list(unsplit(shape_of(value)))
        if name == "stablehlo.broadcast_in_dim":
            wishes = [None] * len(wishes)
            inner = self.wishes(op.operands[0])
            for index, dim in enumerate(integers(op, "broadcast_dimensions")):
                if shape_of(op.operands[0])[index] == shape_of(value)[dim]:
                    wishes[dim] = inner[index]
        elif name == "stablehlo.iota":
            dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            wishes = [sizes if d == dim else None for d, sizes in enumerate(wishes)]
        elif name == "stablehlo.rng_bit_generator" or _is_splat(value):
            wishes = [None] * len(wishes)
        return wishes

    def split(self, value: Value, split: Split) -> Value:
        """A value with its dimensions split so, at the insertion point if there was none yet."""
        if not is_merged(split) or rank_of(value) == 0:
            return value
        key = value, split
        if key not in self._split:
            self._split[key] = self._made(value, split)
        return self._split[key]

    def _made(self, value: Value, split: Split) -> Value:
        if value in self.sources:
            return reshape(self.sources[value][0], split_shape(split))
        name, op = defining_name(value), value.owner
        type_ = with_shape(value.type, split_shape(split))
        if _is_splat(value):
            element = op.attributes["value"].get_splat_value()
            return hlo.constant(ir.DenseElementsAttr.get_splat(type_, element))
        if name == "stablehlo.broadcast_in_dim":
            return self._broadcast(op, split)
        if name == "stablehlo.iota":
            dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            if len(split[dim]) == 1:
                return hlo.iota(type_, split_dimensions(split)[dim][0])
        if value in self.computed:
            return self.elementwise(op, split)
        return reshape(value, split_shape(split))

    def elementwise(self, op: ir.Operation, split: Split) -> Value:
        """An elementwise operation on split operands."""
        operands = [self.split(operand, split) for operand in op.operands]
        type_ = with_shape(op.results[0].type, split_shape(split))
        return clone_with(op, operands, [type_], {}).results[0]

    def _broadcast(self, op: ir.Operation, split: Split) -> Value:
        """A broadcast to a split shape: what is stretched there is not split."""
        (x,), dims = op.operands, integers(op, "broadcast_dimensions")
        result, places = shape_of(op.results[0]), split_dimensions(split)
        inner = [
            split[d] if n == result[d] else (n,) for n, d in zip(shape_of(x), dims, strict=True)
        ]
        # A dimension of size 1 that is stretched is stretched along the last of several.
        into = [places[d][-len(s) :] for s, d in zip(inner, dims, strict=True)]
        type_ = with_shape(op.results[0].type, split_shape(split))
        flat = ir.DenseI64ArrayAttr.get([d for several in into for d in several])
        return hlo.broadcast_in_dim(type_, self.split(x, tuple(inner)), flat)


def _is_splat(value: Value) -> bool:
    """Whether a value is a constant with one number for all elements."""
    if defining_name(value) != "stablehlo.constant":
        return False
    return ir.DenseElementsAttr(value.owner.attributes["value"]).is_splat


def with_shape(type_: ir.Type, shape: Sequence[int]) -> ir.Type:
    """The type of a tensor of another shape and the same elements."""
    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(type_).element_type)


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in row-major order under another shape."""
    return x if list(shape_of(x)) == list(shape) else hlo.reshape(with_shape(x.type, shape), x)
