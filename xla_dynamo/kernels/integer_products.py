"""torch's products of matrices in int8, which oneDNN computes, by plans without Python.

XLA:CPU has loops for these, and no instruction of the processor's. The weight [columns, inner] is
the first factor here, and the rows are the second: oneDNN reads the first one as it lies, and
brings the second one into blocks.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.kernels.library_calls import (
    FunctionPlan,
    PythonKernel,
    ScriptKernel,
    python_kernel,
)
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of, source_of
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import TORCH, TORCH_PLANS
from xla_dynamo.runtime.cpu import call_scripts, integer_products, onednn, torch_functions
from xla_dynamo.runtime.cpu.call_scripts import Argument, Plan, Script, number, slot
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.shares import threads
from xla_dynamo.runtime.cpu.torch_shares import alone, slices, tensor_at
from xla_dynamo.runtime.cpu.torch_tensors import delete_tensors, make_tensor

# Multiplications below which a call costs more than it gains, and below which to call other threads
# costs more than they do.
FEWEST_IN_PRODUCT, FEWEST_DIVIDED = 1 << 15, 1 << 20
_FUNCTION = "_int_mm_out"


@python_kernel
@dataclasses.dataclass(frozen=True)
class IntegerProduct(PythonKernel):
    """x @ y in int32, for x [rows, inner] and y [inner, columns] in int8, whose columns are whole.

    Attributes:
        rows: those of x.
        inner: the inner size of the product.
        columns: those of y.
    """

    name = "integer_product"
    libraries: ClassVar = {torch.int8: frozenset({TORCH})}

    rows: int
    inner: int
    columns: int

    def check(self) -> None:
        """There is something to multiply."""
        if min(self.rows, self.inner, self.columns) < 1:
            self.refuse(f"a product {self.rows} x {self.inner} x {self.columns}")

    @classmethod
    def accept(cls, ctx: Context, x: Value, y: Value) -> Self | None:
        (rows, inner), columns = shape_of(x), shape_of(y)[1]
        lies_so = source_of(y)[1] == [1, 0] and dtype_of(y) is torch.int8
        if not lies_so or rows * inner * columns < max(FEWEST_IN_PRODUCT, 1):
            return None
        return cls(rows, inner, columns)

    def emit(self, ctx: Context, *operands: Any) -> Value:
        type_ = tensor_type([self.rows, self.columns], torch.int32)
        return self.call(ctx, operands, [(0, 1), (1, 0)], [type_], [(1, 0)])[0]

    def shares(self, threads: int) -> Sequence[slice]:
        """Ranges of the columns."""
        is_small = self.rows * self.inner * self.columns < FEWEST_DIVIDED
        return slices(self.columns, 1 if is_small else threads)

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Compute some columns."""
        with alone():
            x = tensor_at(operands[0], [self.rows, self.inner], [0, 1], torch.int8)
            y = tensor_at(operands[1], [self.columns, self.inner], [0, 1], torch.int8)
            out = tensor_at(results[0], [self.columns, self.rows], [0, 1], torch.int32)
            torch.ops.aten._int_mm.out(y[share], x.t(), out=out[share])


@register
@dataclasses.dataclass(frozen=True)
class PlannedIntegerProduct(ScriptKernel):
    """The same in XLA's threads, with no Python in the way.

    Attributes:
        call: the call in Python whose place it takes.
    """

    name = "planned_integer_product"
    replaces = IntegerProduct.name
    reads_plain = TORCH_PLANS

    call: IntegerProduct

    @property
    def packs(self) -> bool:
        """Weights are read as they are."""
        return False

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a call in Python; None if torch has no such function."""
        known = torch_functions.has(_FUNCTION)
        return cls(IntegerProduct.of_call(op)) if known else None

    def packed(self, *weights: torch.Tensor) -> "FunctionPlan | _ByTorch":
        """The plan of a call."""
        few = self.call.rows <= integer_products.MOST_ROWS and integer_products.can_multiply()
        return _of_few_rows(self.call) if few else _ByTorch(self.call)


def _of_few_rows(call: IntegerProduct) -> FunctionPlan:
    """The plan of a call that takes as long as the weight is read, by our own function."""
    function, arguments = integer_products.function(), []
    for part in call.shares(2 * threads()):  # some begin later than others
        sizes = call.rows, call.inner, part.stop - part.start
        arguments.append([*_places(call, part), *map(number, sizes)])
    return FunctionPlan(function, arguments, stays=True)


class _ByTorch:
    """The plan of a call of torch's function, and what its scripts read.

    Attributes:
        plan: it reads what this object holds.
    """

    def __init__(self, call: IntegerProduct) -> None:
        """Write the scripts.

        Raises:
            NativeCodeError: nothing can execute them here.
        """
        call_scripts.register(onednn.threads())
        self._held: list[Any] = []
        parts = call.shares(threads())
        self.plan = Plan([(self._script(call, part), None) for part in parts], threads() - 1)

    def _script(self, call: IntegerProduct, part: slice) -> Script:
        script, count = Script(), part.stop - part.start
        shapes = ((call.rows, call.inner), (count, call.inner), (count, call.rows))
        dtypes = torch.int8, torch.int8, torch.int32
        x, y, out = (
            torch.empty(shape, dtype=dtype, device="meta")
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )
        places = list(itertools.islice(itertools.count(call_scripts.FIRST_FREE), 3))
        for place, address, like in zip(places, _places(call, part), (x.t(), y, out), strict=True):
            make_tensor(script, place, address, like, self._held)
        script.call(torch_functions.kernel(_FUNCTION), *(slot(places[i]) for i in (2, 1, 0)))
        delete_tensors(script, places)
        return script


def _places(call: IntegerProduct, part: slice) -> tuple[Argument, Argument, Argument]:
    """Behind the array of plans: the rows, and from where on a part reads and writes."""
    return slot(1), slot(2, part.start * call.inner), slot(3, part.start * call.rows * 4)
