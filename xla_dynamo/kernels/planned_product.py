"""Matrix products by oneDNN's own library, and plans that execute them.

Where a weight is frozen it is packed: oneDNN says which layout it wants, and the weight is brought
into it once. Other products read both factors at each call, in the layouts that they have. What
follows a product (bias, activation, sum) is computed on the way, by oneDNN's post-ops.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.library_calls import ScriptKernel
from xla_dynamo.kernels.onednn_plans import (
    BIAS,
    RESULT,
    SOURCE,
    WEIGHT,
    Execution,
    Weights,
    attributes_of,
    bounds_of,
    scripts_of,
    second_operands,
)
from xla_dynamo.kernels.onednn_product import OneDNNProduct, is_by_rows
from xla_dynamo.kernels.product_choices import ROWS, XLA, assumed, choice
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import register
from xla_dynamo.lowerings.passes.epilogues import CHANNELWISE, LAST, PostOp, epilogue_of
from xla_dynamo.lowerings.target import ONEDNN_PLANS
from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.call_scripts import Argument, Plan, Script, slot
from xla_dynamo.runtime.cpu.shares import ranges, threads

_WEIGHT_DESC = 131  # the layout of a weight (oneapi/dnnl/dnnl_types.h)
# Multiplications below which to call other threads costs more than they do.
FEWEST_DIVIDED = 1 << 20


@register
@dataclasses.dataclass(frozen=True)
class PlannedProduct(ScriptKernel):
    """A product, and what follows it.

    Attributes:
        product: of two factors in one dtype.
        then: what is computed of its result, one after another. What is added, if anything, is the
            call's last operand.
    """

    name = "planned_product"
    replaces = OneDNNProduct.name
    reads_plain = ONEDNN_PLANS

    product: OneDNNProduct
    then: tuple[PostOp, ...] = ()

    @property
    def packs(self) -> bool:
        """Whether a packed weight is faster than the weight as it is."""
        return assumed(self.product.sizes).packed != XLA

    @property
    def plans(self) -> bool:
        """Whether a plan is known to be faster than XLA's call."""
        return choice(self.product.sizes) is not None

    def check(self) -> None:
        """The result has one clamp or ReLU at most, the last of all, and one sum at most."""
        if any(op.name in LAST for op in self.then[:-1]):
            self.refuse(f"a clamp is followed by others: {self.then}")
        if any(op.name in CHANNELWISE for op in self.then):
            self.refuse(f"columns have no factors of their own: {self.then}")

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self | None:
        """The specification of a product by oneDNN; None if it has another form."""
        with contextlib.suppress(LoweringError):
            product = OneDNNProduct.of_call(op)
            return None if is_by_rows(product.sizes) else cls(product)
        return None

    def absorb(self, result: Value) -> tuple[Value, Sequence[Value], Self]:
        """The activations and the sum that follow, if need be behind another shape."""
        found = epilogue_of(_in_last_shape(result))
        if not found.then:
            return result, (), self
        return found.result, found.operands, dataclasses.replace(self, then=found.then)

    def packed(self, *weights: torch.Tensor) -> "Product":
        """The product with a weight, and a bias if it has one; without, all come with a call."""
        return Product(self, *weights)


def _in_last_shape(value: Value) -> Value:
    """The value in the shape in which it is read."""
    uses = list(value.uses)
    if len(uses) == 1 and uses[0].owner.name == "stablehlo.reshape":
        return _in_last_shape(uses[0].owner.operation.results[0])
    return value


class _Part(NamedTuple):
    """A part of a product: of the stacked products, of the rows and of the columns."""

    stacked: range
    rows: range
    columns: range


class _Matrix:
    """A factor or result in memory: [stack, rows, columns]."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype, is_transposed: bool) -> None:
        stack, rows, columns = sizes
        inner = (1, rows) if is_transposed else (columns, 1)
        self._strides = (rows * columns, *inner)
        self._dtype = dtype
        self._is_stacked = stack > 1
        self._known: dict[tuple[int, ...], onednn.Object] = {}

    def described(self, sizes: Sequence[int]) -> onednn.Object:
        """A description of a part of the memory."""
        first = 0 if self._is_stacked else 1
        key = tuple(sizes)[first:]
        if key not in self._known:
            self._known[key] = onednn.described(key, self._strides[first:], self._dtype)
        return self._known[key]

    def offset(self, *starts: int) -> int:
        """Where a part begins, in bytes."""
        found = sum(i * stride for i, stride in zip(starts, self._strides, strict=True))
        return found * self._dtype.itemsize


class Product:
    """A product with a packed weight or without, and the plan that executes it.

    Attributes:
        plan: it reads and writes what this object holds.
    """

    def __init__(
        self,
        form: PlannedProduct,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        *,
        by: str = "",
    ) -> None:
        """Take what the product computes.

        Args:
            form: the product, and what follows.
            weight: its second factor, if that is frozen.
            bias: its bias, if it has one and its second factor is frozen.
            by: what threads share, the rows or the columns; "" for what is known to be faster.

        Raises:
            OneDNNError: oneDNN cannot compute it.
            NativeCodeError: nothing can execute it here.
        """
        call_scripts.register(onednn.threads())
        self._form, self._product = form, form.product
        one = self._product
        stack, (m, k, n) = math.prod(one.stack), (one.rows, one.inner, one.columns)
        given, made = one.dtypes
        self._x = _Matrix((stack, m, k), given, one.transpose_x)
        self._y = _Matrix((stack, k, n), given, one.transpose_y)
        self._result = _Matrix((stack, m, n), made, False)
        self._bias_matrix = _Matrix((1, 1, n), given, False)
        self._weight, self._bias = weight, bias
        self._packed: dict[range, Weights] = {}
        self._held: list[object] = []
        self._bounds = bounds_of(form.then)
        known = assumed(one.sizes)
        parts = self._parts(threads(), by or (known.plain if weight is None else known.packed))
        with onednn.one_thread():
            self.plan = Plan([self._scripts(part) for part in parts], threads() - 1)
        for packed in self._packed.values():
            packed.give_back()
        self._weight = None

    def _parts(self, workers: int, by: str) -> list[_Part]:
        """Ranges for some threads, which they compute in about the same time."""
        one, stack = self._product, math.prod(self._product.stack)
        whole = range(stack), range(one.rows), range(one.columns)
        if stack * one.rows * one.inner * one.columns < FEWEST_DIVIDED:
            return [_Part(*whole)]
        if stack >= workers:
            return [_Part(r, *whole[1:]) for r in ranges(stack, workers)]
        clamps = bool(self._form.then) and self._form.then[-1].name in LAST
        each = [_Part(range(i, i + 1), *whole[1:]) for i in range(stack)]
        count = -(-workers // stack)
        # A clamp by itself takes memory without gaps.
        if one.rows > 1 and (clamps or by in (ROWS, XLA)):
            return [p._replace(rows=r) for p in each for r in ranges(one.rows, count)]
        return [p._replace(columns=r) for p in each for r in ranges(one.columns, count)]

    def _scripts(self, part: _Part) -> tuple[Script, Script | None]:
        """The script of a part, and the one for NaN."""
        then = self._form.then
        operands = 2 + (0 if self._weight is not None else 1 + self._product.bias)
        starts = [r.start for r in part]
        address = slot(operands + len(second_operands(then)), self._result.offset(*starts))

        def execution(then: Sequence[PostOp]) -> Execution:
            return self._execution(part, then, address, operands)

        memory = address, math.prod(map(len, part)), self._product.dtypes[1]
        return scripts_of(execution, then, memory, self._bounds)

    def _execution(
        self, part: _Part, then: Sequence[PostOp], address: Argument, operands: int
    ) -> Execution:
        one = self._product
        (s, row, column), (count, rows, columns) = [r.start for r in part], map(len, part)
        source = self._x.described((count, rows, one.inner))
        weight = self._y.described((count, one.inner, columns))
        result = self._result.described((count, rows, columns))
        bias = self._bias_matrix.described((1, 1, columns))
        wanted = weight
        is_stacked = math.prod(one.stack) > 1
        if is_stacked:
            strides = columns, columns, 1
            bias = onednn.described((1, 1, columns), strides, one.dtypes[0])
        if self._weight is not None:
            sizes = (count, one.inner, columns)
            wanted = onednn.described(sizes[not is_stacked :], None, one.dtypes[0])
        arguments = (
            onednn.engine(),
            source,
            wanted,
            bias if one.bias else None,
            result,
            attributes_of(then, {"add": result}),
        )
        desc = onednn.described_primitive("matmul", arguments, {})
        primitive = onednn.Object("primitive", "primitive_create", desc)
        read = {SOURCE: (source, slot(1, self._x.offset(s, row, 0)))}
        held: dict[int, onednn.Object] = {}
        if self._weight is None:
            read[WEIGHT] = (weight, slot(2, self._y.offset(s, 0, column)))
            if one.bias:
                read[BIAS] = (bias, slot(3, self._bias_matrix.offset(0, 0, column)))
        else:
            held[WEIGHT] = self._weights(part).packed(onednn.chosen(desc, _WEIGHT_DESC))
            if one.bias:
                assert self._bias is not None
                start = self._bias.data_ptr() + self._bias_matrix.offset(0, 0, column)
                held[BIAS] = onednn.memory(bias, start)
        for added, _ in second_operands(then):
            read[added] = (result, slot(operands, self._result.offset(s, row, column)))
        read[RESULT] = (result, address)
        made = Execution(desc, primitive, held, read)
        self._held.append(made)
        return made

    def _weights(self, part: _Part) -> Weights:
        """The weight of the columns of a part."""
        assert self._weight is not None
        stacked, _, columns = part
        if part.columns not in self._packed:
            one = self._product
            weight = self._weight
            rank = weight.dim()
            inner = weight.movedim(rank - 1, rank - 2) if one.transpose_y else weight
            used = inner[..., columns.start : columns.stop]
            if rank > 2:
                used = used.flatten(0, rank - 3)[stacked.start : stacked.stop]
            self._packed[part.columns] = Weights(used.shape, used.stride(), used)
        return self._packed[part.columns]
