"""torch's products of groups of rows, which XLA makes of all rows with all groups' matrices."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch

from xla_dynamo.kernels.library_calls import PythonKernel, python_kernel
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of, source_of
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import TORCH
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.torch_shares import alone, slices, tensor_at
from xla_dynamo.torch_private import invert_perm

# Multiplications of all rows with all groups' matrices below which a call for each group costs more
# than it gains: bench/RESULTS.md, "Calls of torch's kernels".
FEWEST_IN_GROUPS = 1 << 22
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclasses.dataclass(frozen=True)
class GroupedCall(PythonKernel):
    """The common part of both kernels of groups.

    Attributes:
        rows: how many rows there are, sorted by group.
        inner: the inner size of the product.
        columns: the columns of the groups' matrices.
        groups: how many groups there are.
        order: the dimensions of the matrices [groups, inner, columns] as they lie in memory.
        dtype: of rows and matrices.
        ends_dtype: of the groups' ends.
    """

    libraries = dict.fromkeys(_FLOATS, frozenset({TORCH}))

    rows: int
    inner: int
    columns: int
    groups: int
    order: tuple[int, ...]
    dtype: torch.dtype
    ends_dtype: torch.dtype

    def check(self) -> None:
        """The order is one of three dimensions."""
        if sorted(self.order) != [0, 1, 2]:
            self.refuse(f"the order is {self.order}")

    @classmethod
    def of(
        cls, x: Value, y: Value, ends: Value, columns: int, order: tuple[int, ...]
    ) -> Self | None:
        """The specification, if the kernel is to compute with rows x and what has y's dtype."""
        (rows, inner), groups = shape_of(x), shape_of(ends)[0]
        enough = rows * inner * columns * groups >= FEWEST_IN_GROUPS
        if dtype_of(x) is not dtype_of(y) or not enough:
            return None
        return cls(rows, inner, columns, groups, order, dtype_of(x), dtype_of(ends))

    def rows_at(self, address: Memory, width: int) -> torch.Tensor:
        """The rows at an address."""
        return tensor_at(address, [self.rows, width], [0, 1], self.dtype)

    def matrices_at(self, address: Memory) -> torch.Tensor:
        """The matrices at an address."""
        shape = [self.groups, self.inner, self.columns]
        return tensor_at(address, shape, self.order, self.dtype)

    def ranges(self, address: Memory) -> Iterator[tuple[int, slice]]:
        """The number of each group, and which rows are in it, by the ends at an address."""
        start = 0
        for group, end in enumerate(
            tensor_at(address, [self.groups], [0], self.ends_dtype).tolist()
        ):
            stop = max(min(end, self.rows), start)
            yield group, slice(start, stop)
            start = stop


@python_kernel
@dataclasses.dataclass(frozen=True)
class GroupedProduct(GroupedCall):
    """Products of rows, sorted by group, each with its group's matrix; 0 for rows in no group.

    Operands are rows [rows, inner], matrices [groups, inner, columns] and the groups' ends; the
    result is [rows, columns].
    """

    name = "grouped_product"

    @classmethod
    def accept(cls, ctx: Context, x: Value, matrices: Value, ends: Value) -> Self | None:
        # How the matrices lie in memory: a transpose before them is none then.
        order = tuple(invert_perm(source_of(matrices)[1]))
        return cls.of(x, matrices, ends, shape_of(matrices)[2], order)

    def emit(self, ctx: Context, *operands: Any) -> Value:
        orders, type_ = (
            [(0, 1), self.order, (0,)],
            tensor_type([self.rows, self.columns], self.dtype),
        )
        return self.call(ctx, operands, orders, [type_], [(0, 1)])[0]

    def shares(self, threads: int) -> Sequence[Any]:
        """Ranges of the columns."""
        return slices(self.columns, threads)

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute some columns."""
        with alone():
            x, matrices = self.rows_at(operands[0], self.inner), self.matrices_at(operands[1])
            out = self.rows_at(results[0], self.columns)[:, share]
            out.zero_()
            for group, rows in self.ranges(operands[2]):
                if rows.start < rows.stop:
                    torch.mm(x[rows], matrices[group][:, share], out=out[rows])


@python_kernel
@dataclasses.dataclass(frozen=True)
class GroupedOuterProduct(GroupedCall):
    """The gradient of the matrices: for each group, its rows' x.T @ y; 0 for groups without rows.

    Operands are x [rows, inner], y [rows, columns] and the groups' ends; the result is [groups,
    inner, columns].
    """

    name = "grouped_outer_product"

    @classmethod
    def accept(cls, ctx: Context, x: Value, y: Value, ends: Value) -> Self | None:
        return cls.of(x, y, ends, shape_of(y)[1], (0, 1, 2))

    def emit(self, ctx: Context, *operands: Any) -> Value:
        type_ = tensor_type([self.groups, self.inner, self.columns], self.dtype)
        return self.call(ctx, operands, [(0, 1), (0, 1), (0,)], [type_], [self.order])[0]

    def shares(self, threads: int) -> Sequence[Any]:
        """Ranges of the inner size."""
        return slices(self.inner, threads)

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute some rows of each matrix."""
        with alone():
            x = self.rows_at(operands[0], self.inner)[:, share]
            y = self.rows_at(operands[1], self.columns)
            out = self.matrices_at(results[0])[:, share]
            for group, rows in self.ranges(operands[2]):
                if rows.start < rows.stop:
                    torch.mm(x[rows].T, y[rows], out=out[group])
                else:
                    out[group].zero_()
