"""Matrix products by the oneDNN that jaxlib brings for x86, and that XLA:CPU runs itself.

See `onednn_convolution` for its calls (xla/service/cpu/onednn_matmul.cc).
"""

import contextlib
import dataclasses
import json
import math
from typing import Any, ClassVar, Self

import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels.library_calls import (
    LARGEST_IN_ONEDNN,
    ONEDNN_LIBRARIES,
    library_call,
    may_plan,
)
from xla_dynamo.kernels.product_choices import XLA, Sizes, choice
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.shapes import reshape
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of
from xla_dynamo.lowerings.kernels import Kernel, register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN_PACKED

# Multiplications below which a call costs more than it gains: `python -m bench.forms`, with and
# without `--dtype bfloat16`.
FEWEST_IN_PRODUCT = {torch.bfloat16: 1 << 22, torch.float32: 1 << 26}
# Elements of a weight below which XLA's own product of one row is faster: `python -m bench.decode`.
LARGEST_BY_ROWS = 1 << 21


def _is_row_by_rows(sizes: Sizes) -> bool:
    """Whether a product is of one row by a weight whose rows are side by side in memory, and small.

    XLA reads such a weight as fast as the memory gives it, and oneDNN brings it into blocks first.
    What `product_choices` measures has the weight in the cache, which in decoding it is not.
    """
    is_one = sizes.stack == sizes.rows == 1 and sizes.transpose_y and not sizes.transpose_x
    is_small = sizes.inner * sizes.columns < LARGEST_BY_ROWS
    return is_one and is_small and sizes.dtype is torch.bfloat16


@register
@dataclasses.dataclass(frozen=True)
class OneDNNProduct(Kernel):
    """The product [*stack, m, k] @ [*stack, k, n], plus a bias of [n] in the dtype of both.

    Attributes:
        stack: the sizes that both have.
        rows: m.
        inner: k.
        columns: n.
        transpose_x: whether the first operand comes as [*stack, k, m].
        transpose_y: whether the second one comes as [*stack, n, k].
        dtypes: of both, and of the result.
        bias: whether a bias is added.
    """

    name = "matrix_product"
    target = "__onednn$matmul"
    libraries: ClassVar = ONEDNN_LIBRARIES

    stack: tuple[int, ...]
    rows: int
    inner: int
    columns: int
    transpose_x: bool
    transpose_y: bool
    dtypes: tuple[torch.dtype, torch.dtype]
    bias: bool

    def check(self) -> None:
        """OneDNN counts in 32 bits, and takes five dimensions at most."""
        m, k, n = self.rows, self.inner, self.columns
        elements = math.prod(self.stack) * max(m * k, k * n, m * n)
        if len(self.stack) > 3 or elements > LARGEST_IN_ONEDNN or min(m, k, n, *self.stack) < 1:
            self.refuse(f"a product {m} x {k} x {n} of a stack {self.stack}")
        given, made = self.dtypes
        if given not in self.libraries or made not in (given, torch.float32):
            self.refuse(f"the dtypes are {self.dtypes}")

    @classmethod
    def accept(
        cls,
        ctx: Context,
        x: Value,
        y: Value,
        bias: Value | None,
        *,
        dtype: torch.dtype,
        transpose_x: bool,
        transpose_y: bool,
    ) -> Self | None:
        given, (*stack, rows, inner) = dtype_of(x), shape_of(x)
        if transpose_x:
            rows, inner = inner, rows
        columns = shape_of(y)[-2 if transpose_y else -1]
        turns = transpose_x, transpose_y
        sizes = Sizes(given, math.prod(stack), rows, inner, columns, *turns)
        known = None
        if may_plan(ctx):
            ctx.asked.add(sizes)
            known = choice(sizes)
        if known is not None:
            packs = ONEDNN_PACKED in ctx.libraries and not stack and known.packed != XLA
            if not packs and (known.plain == XLA or _is_row_by_rows(sizes)):
                return None
        elif given is torch.float32 and not (stack or transpose_x or transpose_y):
            return None  # XLA's own are as fast, and faster for few rows
        elif 1 in (rows, columns) or math.prod(sizes[1:5]) < max(FEWEST_IN_PRODUCT[given], 1):
            return None
        with contextlib.suppress(LoweringError):
            return cls(tuple(stack), *sizes[2:], (given, dtype), bias is not None)
        return None

    @property
    def sizes(self) -> Sizes:
        """By which its form is chosen."""
        turns = self.transpose_x, self.transpose_y
        one = math.prod(self.stack), self.rows, self.inner, self.columns
        return Sizes(self.dtypes[0], *one, *turns)

    def emit(self, ctx: Context, *operands: Any) -> Value:
        shape, given = [*self.stack, self.rows, self.columns], list(operands[:2])
        if self.bias:
            given.append(reshape(operands[2], [1] * (len(shape) - 1) + shape[-1:]))
        type_, config = tensor_type(shape, self.dtypes[1]), self.configuration()
        orders = [range(len(shape))] * len(given)
        return library_call(self.target, config, given, orders, [type_], orders[:1])[0]

    def configuration(self) -> ir.Attribute:
        """The configuration that XLA reads."""
        config: dict[str, Any] = {
            "transpose_a": self.transpose_x,
            "transpose_b": self.transpose_y,
        }
        if self.bias:
            config["fusions"] = {"ops": ["BIAS"]}
        return ir.StringAttr.get(json.dumps({"onednn_matmul_config": config}))

    @classmethod
    def of_call(cls, op: ir.Operation) -> Self:
        """The specification of a call that `emit` has written."""
        text = ir.StringAttr(op.attributes["backend_config"]).value
        config = json.loads(text)["onednn_matmul_config"]
        x, _, *bias = op.operands
        (*stack, rows, columns), result = shape_of(op.results[0]), dtype_of(op.results[0])
        return cls(
            stack=tuple(stack),
            rows=rows,
            inner=shape_of(x)[-2 if config["transpose_a"] else -1],
            columns=columns,
            transpose_x=config["transpose_a"],
            transpose_y=config["transpose_b"],
            dtypes=(dtype_of(x), result),
            bias=bool(bias),
        )
