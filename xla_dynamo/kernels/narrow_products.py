"""Products with weights of narrow types, which our own machine code widens in registers.

Few rows take as long as the weight is read. So a weight in int8 is a quarter of the time of one in
float32. XLA would first write a float copy of it into memory, at each call.
"""

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Self, TypeAlias

import torch
from jax.extend.mlir import ir

from xla_dynamo.kernels.libraries import can_execute_packed
from xla_dynamo.kernels.library_calls import (
    FunctionPlan,
    PythonKernel,
    ScriptKernel,
    python_kernel,
)
from xla_dynamo.kernels.onednn_product import MOST_ROWS as FEW_ROWS
from xla_dynamo.lowerings.builders.build import cast
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import TORCH_PLANS
from xla_dynamo.runtime.cpu import row_products
from xla_dynamo.runtime.cpu.call_scripts import NULL, number, slot
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.shares import ranges, threads

# Rows up to which a product costs less than XLA's conversion of the weight and oneDNN's product, by
# the dtype of the rows: bench/RESULTS.md, "Quantized weights".
MOST_ROWS = {torch.float32: 128, torch.bfloat16: 64, torch.float16: 64}
# The dtypes of weights with one element a byte.
NARROW = (torch.int8,)
# Elements of a weight below which a call costs more than it gains.
FEWEST_IN_WEIGHT = 1 << 12
# Multiplications below which to call other threads costs more than they do.
FEWEST_DIVIDED = 1 << 18

# An address that a function takes: the number of an operand, or of the result behind them, and an
# offset in bytes; or null.
Place: TypeAlias = tuple[int, int] | None


@dataclasses.dataclass(frozen=True)
class NarrowCall(PythonKernel):
    """The common part of products with narrow weights: float32 results of float32 rows.

    Attributes:
        rows: how many there are.
        inner: the inner size of the product.
        columns: of the result.
    """

    libraries: ClassVar = dict.fromkeys(MOST_ROWS, frozenset({TORCH_PLANS}))
    together: ClassVar[int] = 4  # as many columns are best computed by one thread

    rows: int
    inner: int
    columns: int

    def check(self) -> None:
        """No size is less than nothing."""
        if min(self.rows, self.inner, self.columns) < 0:
            self.refuse(f"a product {self.rows} x {self.inner} x {self.columns}")

    @classmethod
    def pays(cls, x: Value, columns: int) -> bool:
        """Whether a product of rows x is to be a call, and can be one here."""
        rows, inner = shape_of(x)
        few = 0 < rows <= MOST_ROWS[dtype_of(x)] and inner * columns >= max(FEWEST_IN_WEIGHT, 1)
        return few and can_execute_packed()

    def written(self, ctx: Context, x: Value, *others: Value) -> Value:
        """Write a call on rows and others, which are row-major; returns the result in float32."""
        operands = [cast(x, torch.float32), *others]
        orders = [tuple(range(len(shape_of(one)))) for one in operands]
        type_ = tensor_type([self.rows, self.columns], torch.float32)
        return self.call(ctx, operands, orders, [type_], [(0, 1)])[0]

    def function(self) -> Any:
        """The function of ctypes that computes some columns.

        Raises:
            NativeCodeError: it cannot be compiled here.
        """
        raise NotImplementedError

    def arguments(self, share: range) -> tuple[list[Place], list[int]]:
        """The addresses that the function takes for some columns, and the numbers behind them."""
        raise NotImplementedError

    def shares(self, threads: int) -> Sequence[range]:
        """Ranges of the columns."""
        if self.rows * self.inner * self.columns < FEWEST_DIVIDED:
            return [range(self.columns)]
        step = self.together
        blocks = ranges(-(-self.columns // step), threads)
        return [range(r.start * step, min(r.stop * step, self.columns)) for r in blocks]

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute some columns."""
        places, sizes = self.arguments(share)
        memory = (*operands, *results)
        addresses = [memory[place[0]] + place[1] if place else 0 for place in places]
        if self.function()(*map(ctypes.c_int64, (*addresses, *sizes))):
            raise MemoryError("there is no memory for a product")


@python_kernel
@dataclasses.dataclass(frozen=True)
class NarrowProduct(NarrowCall):
    """x @ weight.T for float32 rows x [rows, inner] and a weight [columns, inner].

    Attributes:
        dtype: of the weight, one of `NARROW`.
    """

    name = "narrow_product"

    dtype: torch.dtype

    def check(self) -> None:
        """There is a function for the dtype."""
        super().check()
        if self.dtype not in NARROW:
            self.refuse(f"the weight is in {self.dtype}")

    @classmethod
    def accept(cls, ctx: Context, x: Value, weight: Value) -> Self | None:
        columns, inner = shape_of(weight)
        if dtype_of(weight) not in NARROW or not cls.pays(x, columns):
            return None
        return cls(shape_of(x)[0], inner, columns, dtype_of(weight))

    def emit(self, ctx: Context, *operands: Any) -> Value:
        return self.written(ctx, *operands)

    def function(self) -> Any:
        """The function for the weight's dtype."""
        floats = torch.float32
        return row_products.function(True, floats, self.dtype, floats)

    def arguments(self, share: range) -> tuple[list[Place], list[int]]:
        """The function takes a bias and what is added, too, which are not there."""
        first = share.start
        weight = first * self.inner * self.dtype.itemsize
        places: list[Place] = [(0, 0), (1, weight), None, None, (2, 4 * first)]
        return places, [self.rows, self.inner, len(share), self.columns]


@dataclasses.dataclass(frozen=True)
class PlannedNarrowCall(ScriptKernel):
    """A call without Python.

    Attributes:
        call: the call in Python whose place it takes.
    """

    reads_plain = TORCH_PLANS
    kernel: ClassVar[type[NarrowCall]]

    call: NarrowCall

    @property
    def packs(self) -> bool:
        """Weights are read as they are."""
        return False

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self:
        """The specification of a call in Python."""
        return cls(cls.kernel.of_call(op))

    def packed(self, *weights: torch.Tensor) -> FunctionPlan:
        """The plan of a call."""
        function, arguments = self.call.function(), []
        for share in self.call.shares(2 * threads()):  # some begin later than others
            places, sizes = self.call.arguments(share)
            # The array of plans comes first.
            addresses = [slot(1 + p[0], p[1]) if p else NULL for p in places]
            arguments.append([*addresses, *map(number, sizes)])
        return FunctionPlan(function, arguments, stays=self.call.rows <= FEW_ROWS)


@register
@dataclasses.dataclass(frozen=True)
class PlannedNarrowProduct(PlannedNarrowCall):
    """x @ weight.T, in XLA's threads."""

    name = "planned_narrow_product"
    replaces = NarrowProduct.name
    kernel = NarrowProduct

    call: NarrowProduct
