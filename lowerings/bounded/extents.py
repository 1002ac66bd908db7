"""Sizes of programs that are lowered several times, and the extents that they stand for.

A graph with dynamic sizes is lowered once for each *variant*, a choice of numbers for its symbols.
The first variant has the bounds: that is the program that runs. A size is known by its numbers in
all variants, and an *extent* is the polynomial of the symbols that has these values.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type

# A size in each variant.
Sizes: TypeAlias = tuple[int, ...]


class Refused(Exception):
    """A program cannot be bounded: what it computes depends on sizes in another way.

    Attributes:
        location: the location of the operation in the program.
    """

    def __init__(self, reason: str, location: str = "") -> None:
        super().__init__(reason)
        self.location = location


def is_dynamic(sizes: Sizes) -> bool:
    """Whether a size is not the same in all variants."""
    return len(set(sizes)) > 1


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """A polynomial of symbols: the sum of `factor * product of the symbols of these numbers`.

    Attributes:
        terms: the factor by the symbols' numbers, in ascending order.
    """

    terms: tuple[tuple[tuple[int, ...], int], ...]

    @classmethod
    def of(cls, terms: dict[tuple[int, ...], int]) -> "Extent":
        """The polynomial of these terms; terms of factor 0 go."""
        return cls(tuple(sorted((key, n) for key, n in terms.items() if n)))

    def at(self, values: Sequence[int]) -> int:
        """The value at these values of the symbols."""
        return sum(n * math.prod(values[i] for i in key) for key, n in self.terms)

    def plus(self, other: "Extent | int", factor: int = 1) -> "Extent":
        """The sum with another extent, or a number, times a factor."""
        terms = dict(self.terms)
        others = (((), other),) if isinstance(other, int) else other.terms
        for key, n in others:
            terms[key] = terms.get(key, 0) + factor * n
        return Extent.of(terms)

    def times(self, other: "Extent") -> "Extent":
        """The product with another extent."""
        terms: dict[tuple[int, ...], int] = {}
        for (left, n), (right, m) in itertools.product(self.terms, other.terms):
            key = tuple(sorted(left + right))
            terms[key] = terms.get(key, 0) + n * m
        return Extent.of(terms)

    def factors(self, number_first: bool) -> "Parts":
        """The number and the symbols that it is the product of; itself, if it is a sum."""
        if len(self.terms) != 1 or self.number is not None:
            return (self,)
        ((key, n),) = self.terms
        number = () if n == 1 else (constant(n),)
        symbols = tuple(map(symbol, key))
        return (*number, *symbols) if number_first else (*symbols, *number)

    def where(self, extents: Sequence["Extent"]) -> "Extent":
        """The extent with others in place of the symbols, one for each."""
        total = constant(0)
        for key, n in self.terms:
            total = total.plus(
                functools.reduce(Extent.times, (extents[i] for i in key), constant(n))
            )
        return total

    def never_below(self, least: int, lows: Sequence[int]) -> bool:
        """Whether it only rises with the symbols, and is not below a number at the least ones."""
        return all(n > 0 for key, n in self.terms if key) and self.at(lows) >= least

    def least(self, ranges: Sequence[tuple[int, int]]) -> int:
        """A number that it is not below, where its symbols are in these ranges, from 0 or above."""
        return sum(n * math.prod(ranges[i][n < 0] for i in key) for key, n in self.terms)

    @property
    def number(self) -> int | None:
        """The value, if it depends on no symbol."""
        terms = dict(self.terms)
        return terms.get((), 0) if not terms.keys() - {()} else None


def constant(number: int) -> Extent:
    """The extent that is always this number."""
    return Extent.of({(): number})


# What is merged in a dimension, in row-major order: [batch, sequence] as one has the two parts.
Parts: TypeAlias = tuple[Extent, ...]


def symbol(number: int) -> Extent:
    """The extent that is the symbol of this number."""
    return Extent.of({(number,): 1})


class Symbols:
    """The symbols of a graph: their numbers in the variants, and in the running program.

    Attributes:
        sizes: of each symbol, its numbers in the variants.
        lows: the least number of each symbol that the program is for.
    """

    def __init__(
        self, sizes: Sequence[Sizes], lows: Sequence[int], known: Iterable[Extent] = ()
    ) -> None:
        """Take the symbols' numbers, and extents to prefer where several, or none, would be found.

        Those that the trace has are good ones.
        """
        self.sizes, self.lows = list(sizes), list(lows)
        self._of_trace: dict[Sizes, set[Extent]] = {}
        for extent in known:
            values = tuple(extent.at(at) for at in zip(*sizes, strict=True))
            self._of_trace.setdefault(values, set()).add(extent)
        self._candidates = self._all_candidates()
        self._known: dict[Sizes, Extent | None] = {}

    def extent(self, sizes: Sizes) -> Extent | None:
        """The one simple extent with these values in the variants; None if there is none."""
        if sizes not in self._known:
            self._known[sizes] = self._solve(sizes)
        return self._known[sizes]

    def wanted(self, sizes: Sizes) -> Extent:
        """The extent of a size.

        Raises:
            Refused: the size follows from the symbols in another way.
        """
        if (found := self.extent(sizes)) is None:
            raise Refused(f"a size is {sizes[0]} at the bounds, in a way that is not followed")
        return found

    def _solve(self, sizes: Sizes) -> Extent | None:
        """A product of symbols times a factor, plus a constant if it is of one symbol."""
        if not is_dynamic(sizes):
            return constant(sizes[0])
        found: set[Extent] = set()
        for key, values in self._candidates:
            # The last variant is the one in which no symbol has its bound.
            rise, steps = sizes[0] - sizes[-1], values[0] - values[-1]
            if steps == 0 or rise % steps or rise == 0:
                continue
            factor = rise // steps
            rest = sizes[0] - factor * values[0]
            if len(key) > 1 and rest:
                continue
            if all(factor * v + rest == n for v, n in zip(values, sizes, strict=True)):
                found.add(Extent.of({key: factor, (): rest}))
        for (i, a), (j, b) in itertools.combinations(enumerate(self.sizes), 2):
            rests = {n - x - y for n, x, y in zip(sizes, a, b, strict=True)}
            if len(rests) == 1:
                found.add(Extent.of({(i,): 1, (j,): 1, (): rests.pop()}))
        if len(found) != 1:
            found = self._of_trace.get(sizes, set())
        return next(iter(found)) if len(found) == 1 else None

    def _all_candidates(self) -> list[tuple[tuple[int, ...], Sizes]]:
        numbers = range(len(self.sizes))
        keys = [k for n in (1, 2, 3) for k in itertools.combinations_with_replacement(numbers, n)]
        return [
            (
                key,
                tuple(
                    math.prod(of_one) for of_one in zip(*(self.sizes[i] for i in key), strict=True)
                ),
            )
            for key in keys
        ]


class RunTimeSizes:
    """The values of extents in the running program, as scalars.

    They are made where the program begins, from its argument of the symbols' values, i32[symbols].
    """

    def __init__(self, argument: ir.Value, block: ir.Block) -> None:
        self._argument, self._block = argument, block
        self._made: dict[Extent, ir.Value] = {}

    def value(self, extent: Extent) -> ir.Value:
        """The value of an extent, i64[]."""
        if extent not in self._made:
            with ir.InsertionPoint.at_block_begin(self._block), ir.Location.unknown():
                self._made[extent] = self._emit(extent)
        return self._made[extent]

    def symbol(self, number: int) -> ir.Value:
        """The value of a symbol, i64[]."""
        one = build.reshape(build.slice_dim(self._argument, 0, number, number + 1), [])
        return hlo.convert(tensor_type((), torch.int64), one)

    def _emit(self, extent: Extent) -> ir.Value:
        total = None
        for key, factor in extent.terms:
            term = build.scalar(factor, torch.int64)
            for i in key:
                term = hlo.multiply(term, self.symbol(i))
            total = term if total is None else hlo.add(total, term)
        return build.scalar(0, torch.int64) if total is None else total
