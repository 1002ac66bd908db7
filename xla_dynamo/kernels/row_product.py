"""Products of a few rows as plans, by functions of our own (`runtime.cpu.row_products`)."""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.library_calls import FunctionPlan, ScriptKernel
from xla_dynamo.kernels.onednn_product import OneDNNProduct, is_by_rows
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.passes.epilogues import sum_of
from xla_dynamo.lowerings.target import ONEDNN_PLANS
from xla_dynamo.runtime.cpu import row_products
from xla_dynamo.runtime.cpu.call_scripts import NULL, Argument, number, slot
from xla_dynamo.runtime.cpu.shares import ranges, threads

# Bytes of a matrix that a part reads at least.
_BYTES = 1 << 16
# Columns of a matrix [inner, columns] that a part has at least: it reads as many of each row.
_COLUMNS = 256


@register
@dataclasses.dataclass(frozen=True)
class RowProduct(ScriptKernel):
    """A product of a few rows, with a bias, if it has one, and a sum.

    Attributes:
        product: of two factors in one dtype.
        adds: whether a value is added to the result, which is the call's last operand.
    """

    name = "row_product"
    replaces = OneDNNProduct.name
    reads_plain = ONEDNN_PLANS

    product: OneDNNProduct
    adds: bool = False

    @property
    def packs(self) -> bool:
        """A weight is read as it is."""
        return False

    def check(self) -> None:
        """The product is such a one."""
        if not is_by_rows(self.product.sizes):
            self.refuse(f"the product is of {self.product.sizes}")

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a product by oneDNN; None if it has many rows."""
        with contextlib.suppress(LoweringError):
            return cls(OneDNNProduct.of_call(op))
        return None

    def absorb(self, result: Value) -> tuple[Value, Sequence[Value], Self]:
        """A sum with another value."""
        found = sum_of(result)
        if not found.then:
            return result, (), self
        return found.result, found.operands, dataclasses.replace(self, adds=True)

    def packed(self, *_: torch.Tensor) -> FunctionPlan:
        """The plan, which reads all operands at each call."""
        return _plan(self)


def _plan(form: RowProduct) -> FunctionPlan:
    """The plan, whose parts compute ranges of the columns."""
    one = form.product
    given, made = one.dtypes
    function = row_products.function(one.transpose_y, given, given, made)
    most = max(one.inner * one.columns * given.itemsize // _BYTES, 1)
    if one.transpose_y:
        # Who has time takes the next part: a thread that is late has one, the others more.
        parts = min(most, 2 * threads())
    else:
        parts = min(most, max(one.columns // _COLUMNS, 1), threads())
    arguments = [_arguments(form, share) for share in ranges(one.columns, parts)]
    return FunctionPlan(function, arguments, stays=True)


def _arguments(form: RowProduct, share: range) -> list[Argument]:
    """Those of the function for some columns."""
    one, first = form.product, share.start
    given, made = (dtype.itemsize * first for dtype in one.dtypes)
    bias = slot(3, given) if one.bias else NULL
    result = 3 + one.bias + form.adds
    added = slot(result - 1, made) if form.adds else NULL
    matrix = slot(2, given * one.inner if one.transpose_y else given)
    sizes = one.rows, one.inner, len(share), one.columns
    return [slot(1), matrix, bias, added, slot(result, made), *map(number, sizes)]
