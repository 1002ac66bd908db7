"""Split each large reduction into reductions that XLA:CPU vectorizes.

XLA:CPU reduces the innermost dimension by vectors, if it is one dimension and no more. Outer
dimensions it reduces column after column, unless a few rows are reduced at a time, which it does by
vectors along the rows. So columns are reduced some rows at a time, and what is left then, a
sixteenth, by windows, which XLA does not merge into one reduction again. XLA's own rewriter would
make windows of everything at once, which XLA reduces element after element and does not fuse with
their operands: it is turned off (`runtime/xla_options.py`). `python -m bench.reductions` has
figures.
"""

import math
from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.cpu_thresholds import FEWEST_REDUCED as FEWEST
from xla_dynamo.lowerings.builders.cpu_thresholds import LONGEST_ROW as _LONGEST
from xla_dynamo.lowerings.builders.cpu_thresholds import REDUCED_BY_WINDOW as _WINDOW
from xla_dynamo.lowerings.builders.cpu_thresholds import ROWS_AT_A_TIME as _AT_A_TIME
from xla_dynamo.lowerings.builders.reductions import reduction_of
from xla_dynamo.lowerings.builders.values import Value, source_of
from xla_dynamo.lowerings.passes.permuted_operations import clone_with, integer_array, integers
from xla_dynamo.lowerings.target import Target

_KINDS = {
    "stablehlo.add": "sum",
    "stablehlo.multiply": "prod",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.xor": "xor",
}


def split_reductions(module: ir.Module, target: Target) -> None:
    """Replace the large reductions of a module, nested ones too.

    Assumes that the combiner of a reduction is associative, and that its initial value is the
    identity. Leaves reductions of several arrays, of few elements, and by anything but one
    operation of `_KINDS`.
    """
    found: list[tuple[ir.Operation, str]] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "stablehlo.reduce" and (kind := _kind(op)):
            found.append((op, kind))
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op, kind in found:
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(_Reduction(op, kind).result())
        op.erase()


def _kind(op: ir.Operation) -> str | None:
    """What a large reduction of one array computes, in the words of `build.reduce`."""
    if len(op.operands) != 2 or build.numel_of(op.operands[0]) < FEWEST:
        return None
    return _KINDS.get(reduction_of(op))


class _Reduction:
    """A reduction, split step by step.

    Attributes:
        x: the value that is left to be reduced.
        over: the dimensions of x to reduce, in ascending order.
    """

    def __init__(self, op: ir.Operation, kind: str) -> None:
        self._op, self._kind = op, kind
        self.x, permutation = source_of(op.operands[0])
        dims = integers(op, "dimensions")
        self.over = sorted(permutation[dim] for dim in dims)
        self._kept = [source for dim, source in enumerate(permutation) if dim not in dims]

    def result(self) -> Value:
        """Write the steps, and return the result of the last one."""
        first, last = _last_run(self.over)
        outer = [dim for dim in self.over if dim < first]
        if last + 1 < build.rank_of(self.x):
            self._reduce_rows(first, last)
        elif outer and self._count(first, last) <= _WINDOW:
            self._reduce_rows(*_last_run(outer))
        else:
            self._reduce_row(first, last)
            if outer:
                self._reduce_rows(*_last_run(outer))
        return self._reduce_rest()

    def _reduce_rows(self, first: int, last: int) -> None:
        """Reduce along these dimensions, which have rows inside them, as far as that pays.

        Some neighbours in the last of them are reduced at a time: XLA computes the indices of any
        others slowly.
        """
        shape = build.shape_of(self.x)
        if self._count(first, last) <= _WINDOW or build.numel_of(self.x) < FEWEST:
            return
        size = shape[last]
        if size > _WINDOW:
            self._reduce_parts(last, _divisor(size, _AT_A_TIME))
        else:
            few = range(_WINDOW // size, 0, -1) if first < last else [1]
            some = next(n for n in few if shape[last - 1] % n == 0)
            if some > 1:
                self._merge(last - 1, last)
                last -= 1
            self._reduce_parts(last, some * size)

    def _reduce_row(self, first: int, last: int) -> None:
        """Reduce the innermost dimensions, from `first` on, unless the last step does that too."""
        count = self._count(first, last)
        if first < last and count > _WINDOW:
            self._merge(first, last)
            self.x = hlo.optimization_barrier([self.x])  # XLA would split it again
        if count > 2 * _LONGEST:
            self._reduce_parts(first, _divisor(count, _LONGEST))
        elif first != self.over[0]:
            self.x = build.reduce(self.x, list(range(first, build.rank_of(self.x))), self._kind)
            self.over = [dim for dim in self.over if dim < first]

    def _reduce_parts(self, dim: int, size: int) -> None:
        """Reduce `size` neighbours at a time along a dimension, then what is left by windows."""
        shape = list(build.shape_of(self.x))
        if excess := -shape[dim] % size:
            high = [excess if d == dim else 0 for d in range(len(shape))]
            identity = build.identity(self._kind, build.dtype_of(self.x))
            self.x = build.pad(self.x, identity, [0] * len(shape), high)
        if (parts := (shape[dim] + excess) // size) == 1:
            self.over = [d if d < dim else d - 1 for d in self.over if d != dim]
            self.x = build.reduce(self.x, [dim], self._kind)
        else:
            split = build.reshape(self.x, [*shape[:dim], parts, size, *shape[dim + 1 :]])
            self.x = build.reduce(split, [dim + 1], self._kind)
        self._reduce_windows()

    def _reduce_windows(self) -> None:
        """Reduce by windows, as often as it takes until no dimension is larger than a window."""
        shape = build.shape_of(self.x)
        sizes = [min(n, _WINDOW) if dim in self.over else 1 for dim, n in enumerate(shape)]
        padding = [(0, -n % size) for n, size in zip(shape, sizes, strict=True)]
        self.x = build.reduce_window(self.x, self._kind, sizes, sizes, padding)
        if max(build.shape_of(self.x)[dim] for dim in self.over) > _WINDOW:
            self._reduce_windows()

    def _reduce_rest(self) -> Value:
        """Reduce the dimensions that are left as the operation does, and permute the result."""
        shape = build.shape_of(self.x)
        sizes = [n for dim, n in enumerate(shape) if dim not in self.over]
        type_ = ir.RankedTensorType.get(sizes, self.x.type.element_type)
        operands = [self.x, self._op.operands[1]]
        last = clone_with(self._op, operands, [type_], {"dimensions": integer_array(self.over)})
        permutation = [sorted(self._kept).index(dim) for dim in self._kept]
        return build.transpose(last.results[0], permutation)

    def _merge(self, first: int, last: int) -> None:
        """Reshape x so that several dimensions to reduce are one."""
        shape, gone = build.shape_of(self.x), last - first
        sizes = [*shape[:first], self._count(first, last), *shape[last + 1 :]]
        self.x = build.reshape(self.x, sizes)
        self.over = [d if d <= first else d - gone for d in self.over if not first < d <= last]

    def _count(self, first: int, last: int) -> int:
        return math.prod(build.shape_of(self.x)[first : last + 1])


def _last_run(dims: Sequence[int]) -> tuple[int, int]:
    """The first and the last of the neighbouring dimensions that the list ends with."""
    first = dims[-1]
    while first - 1 in dims:
        first -= 1
    return first, dims[-1]


def _divisor(count: int, most: int) -> int:
    """The largest divisor of `count` in the upper half of 1 to `most`; `most` if there is none."""
    return next((n for n in range(most, most // 2, -1) if count % n == 0), most)
