"""What the rules of dynamic programs share: dynamic types, and sizes as values of the program."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.alignment import Alignment, Row
from xla_dynamo.lowerings.bounded.extents import (
    Extent,
    RunTimeSizes,
    Sizes,
    Symbols,
    is_dynamic,
)
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type

# Rewrites the operation of the dynamic program, which is the second argument. The row has the same
# operation as it stands in each variant.
Rule: TypeAlias = Callable[["DynamicContext", ir.Operation, Row], None]
RULES: dict[str, Rule] = {}


def dynamic_rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operations by name, for dynamic sizes or attributes of them."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES
            RULES[name] = rule
        return rule

    return register


class DimensionSizes(RunTimeSizes):
    """The values of extents, told by the shapes of the program's arguments."""

    def __init__(self, sources: Mapping[int, tuple[ir.Value, int]], block: ir.Block) -> None:
        """Take for each symbol an argument and its dimension of that size."""
        super().__init__(block.arguments[0], block)
        self._sources = sources

    def symbol(self, number: int) -> ir.Value:
        """The value of a symbol, i64[]."""
        argument, dimension = self._sources[number]
        size = hlo.get_dimension_size(argument, dimension)
        return hlo.convert(tensor_type((), torch.int64), size)


class DynamicContext:
    """A program on its way to one of dynamic sizes.

    Attributes:
        symbols: the dynamic sizes.
        run_time: their values, where the program runs.
    """

    def __init__(
        self,
        symbols: Symbols,
        highs: Sequence[int | None],
        run_time: RunTimeSizes,
        aligned: Alignment,
    ) -> None:
        """Take the symbols, the largest number of each, their values, and the variants."""
        self.symbols, self.run_time = symbols, run_time
        self._highs, self._aligned = list(highs), aligned
        self.replaced: list[ir.Operation] = []
        self._vectors: dict[tuple[Sizes, ...], ir.Value] = {}

    def type(self, sizes: Sequence[Sizes], element: ir.Type) -> ir.Type:
        """The type of a tensor of these sizes: `?` where one is dynamic.

        Raises:
            Refused: a dynamic size is no polynomial of the symbols.
        """
        return ir.RankedTensorType.get([self._dimension(s) for s in sizes], element)

    def _dimension(self, sizes: Sizes) -> int:
        if not is_dynamic(sizes):
            return sizes[0]
        self.symbols.wanted(sizes)
        return ir.ShapedType.get_dynamic_size()

    def set_types(self, op: ir.Operation, row: Row) -> None:
        """Give the results of an operation their dynamic types."""
        for number, result in enumerate(op.results):
            result.set_type(self.type(row.result(number), result.type.element_type))

    def vector(self, numbers: Sequence[Sizes]) -> ir.Value:
        """Sizes as a vector of the program, i64[n]."""
        key = tuple(numbers)
        if key not in self._vectors:  # made before its first reader, and so before all others
            self._vectors[key] = self._vector(key)
        return self._vectors[key]

    def _vector(self, numbers: Sequence[Sizes]) -> ir.Value:
        if not any(map(is_dynamic, numbers)):
            return build.array([n[0] for n in numbers], torch.int64)
        parts = [build.reshape(self.number(n), [1]) for n in numbers]
        return build.concatenate(parts, 0)

    def number(self, sizes: Sizes) -> ir.Value:
        """A size as a scalar of the program, i64[]."""
        if not is_dynamic(sizes):
            return build.scalar(sizes[0], torch.int64)
        return self.run_time.value(self.symbols.wanted(sizes))

    def value(self, extent: Extent, dtype: torch.dtype) -> ir.Value:
        """The value of an extent as a scalar of some dtype."""
        made = self.run_time.value(extent)
        return made if dtype is torch.int64 else hlo.convert(tensor_type((), dtype), made)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """In a region: what is made there is not to be read outside."""
        outside = dict(self._vectors)
        try:
            yield
        finally:
            self._vectors = outside

    def is_never_negative(self, extent: Extent) -> bool:
        """Whether an extent is 0 or more at all sizes: each term is taken at its least."""
        least = 0
        for key, factor in extent.terms:
            ends = [self.symbols.lows[i] if factor > 0 else self._highs[i] for i in key]
            if None in ends:
                return False
            least += factor * math.prod(end for end in ends if end is not None)
        return least >= 0

    def replace(self, op: ir.Operation, *new: ir.Value) -> None:
        """Give the users of an operation's results other values."""
        for old, value in zip(op.results, new, strict=True):
            old.replace_all_uses_with(value)
            self._aligned.replaced(old, value)
        self.replaced.append(op)
