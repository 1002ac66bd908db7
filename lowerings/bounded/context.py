"""What the rules of bounded programs share: the dimensions of each value, masks, run-time sizes."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.alignment import Alignment, Row
from xla_dynamo.lowerings.bounded.dimensions import Dim, Dims, is_free, static_dim
from xla_dynamo.lowerings.bounded.extents import Extent, Refused, RunTimeSizes, Sizes, Symbols
from xla_dynamo.lowerings.bounded.masks import Masks
from xla_dynamo.lowerings.builders.dtypes import tensor_type


class BoundedContext:
    """A program on its way to a bounded one.

    Attributes:
        symbols: the dynamic sizes.
        run_time: their values, where the program runs.
        masks: selects by them.
        dims: of each value that has been read, its dimensions.
    """

    def __init__(self, symbols: Symbols, run_time: RunTimeSizes, aligned: Alignment) -> None:
        self.symbols, self.run_time, self._aligned = symbols, run_time, aligned
        self.masks = Masks(symbols, run_time)
        self.dims: dict[ir.Value, Dims] = {}

    def operand(self, row: Row, number: int) -> Dims:
        """The dimensions of an operand."""
        return self.dims[row.op.operands[number]]

    def replace(self, old: ir.Value, new: ir.Value, dims: Dims) -> None:
        """Give the users of a value another one of the same type."""
        old.replace_all_uses_with(new)
        self._aligned.replaced(old, new)
        self.dims[old] = self.dims[new] = dims

    def value(self, extent: Extent, dtype: torch.dtype) -> ir.Value:
        """The value of an extent in the running program, as a scalar of some dtype."""
        made = self.run_time.value(extent)
        return made if dtype is torch.int64 else hlo.convert(tensor_type((), dtype), made)

    def count(self, dim: Dim) -> Extent:
        """How many positions of a dimension of one atom have elements of the graph."""
        if len(dim) != 1:
            raise Refused("it takes a part of dynamic dimensions that were merged")
        return self.masks.extent(dim[0])


# Notes the dimensions of the results of a row, and changes the operations where they need masks.
Rule: TypeAlias = Callable[[BoundedContext, Row], None]
RULES: dict[str, Rule] = {}


def bounds(*names: str) -> Callable[[Rule], Rule]:
    """Register the rule of operations by name, for when some dimension of them is dynamic."""

    def register(rule: Rule) -> Rule:
        for name in names:
            assert name not in RULES
            RULES[name] = rule
        return rule

    return register


def allow(row: Row, *names: str) -> None:
    """Raise Refused where other attributes than these depend on a size."""
    if other := row.differing() - set(names):
        raise Refused(f"its {', '.join(sorted(other))} depend on a dynamic size")


def all_static(sizes: Sequence[Sizes]) -> Dims:
    """The dimensions of a value without dynamic sizes."""
    return tuple(map(static_dim, sizes))


def refuse_dynamic(dims: Dims, why: str) -> None:
    """Raise Refused if a dimension is dynamic."""
    if any(map(is_free, dims)):
        raise Refused(why)
