"""Splits: into which dimensions merged ones split, and attributes of operations on split operands.

A *split* of a shape has, for each dimension, the sizes of the dimensions that were merged into it,
in row-major order: ((2, 5), (16,)) is the split of [10, 16] that was made from [2, 5, 16]. Sizes of
1 are left out. A dimension that was never merged has its own size alone, as ((16,),).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.passes.permuted_operations import integer_array, integers

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


def is_single(sizes: Wish) -> bool:
    """Whether a dimension was not merged, and is not to be split."""
    return sizes is not None and len(sizes) == 1


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


def decided(wishes: Sequence[Wish], shape: Sequence[int]) -> Split:
    """The split of a shape that wishes come to: what may be split in any way is not."""
    return tuple(sizes or (n,) for sizes, n in zip(wishes, shape, strict=True))


def split_slice(op: ir.Operation, split: Split) -> dict[str, ir.Attribute]:
    """The attributes of a slice of a split operand; of merged dimensions it takes all."""
    names = ("start_indices", "limit_indices", "strides")
    given = zip(*(integers(op, name) for name in names), strict=True)
    bounds = [
        bound
        for sizes, one in zip(split, given, strict=True)
        for bound in ([(0, n, 1) for n in sizes] if len(sizes) > 1 else [one])
    ]
    columns = zip(*bounds, strict=True)
    return {name: integer_array(column) for name, column in zip(names, columns, strict=True)}


class ProductDimensions:
    """The dimensions of a `dot_general`: those of the batch, and those that are contracted.

    Attributes:
        batch, contracting: the dimensions of each factor.
        pairs: by pairs of one dimension of each factor, the batch's first.
    """

    def __init__(self, op: ir.Operation) -> None:
        """Read them off a product."""
        numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        self.batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
        self.contracting = (
            list(numbers.lhs_contracting_dimensions),
            list(numbers.rhs_contracting_dimensions),
        )
        self.pairs = [
            pair for dims in (self.batch, self.contracting) for pair in zip(*dims, strict=True)
        ]

    def split_numbers(self, splits: tuple[Split, Split]) -> ir.Attribute:
        """The numbers of a product of split factors: pairs become pairs in the same sequence."""
        parts = [split_dimensions(split) for split in splits]
        flat = [
            [part for dim in dims for part in of_factor[dim]]
            for both in (self.batch, self.contracting)
            for of_factor, dims in zip(parts, both, strict=True)
        ]
        return hlo.DotDimensionNumbers.get(*flat)

    def result_split(self, splits: tuple[Split, Split]) -> Split:
        """The split of the result: the batch, then what is free in each factor."""
        found = [splits[0][dim] for dim in self.batch[0]]
        for split, *taken in zip(splits, self.batch, self.contracting, strict=True):
            found += [n for dim, n in enumerate(split) if dim not in itertools.chain(*taken)]
        return tuple(found)
