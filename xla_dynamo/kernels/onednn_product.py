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
from xla_dynamo.kernels.product_choices import XLA, Sizes, are_measured, choice
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.shapes import reshape
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of
from xla_dynamo.lowerings.kernels import Kernel, register
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN_PACKED

# Multiplications below which a call costs more than it gains: `python -m bench.forms`, with and
# without `--dtype bfloat16`.
FEWEST_IN_PRODUCT = {torch.bfloat16: 1 << 22, torch.float32: 1 << 26}
# Products of at most so many rows, by a matrix of at least so many elements, read the matrix as it
# lies (`row_product`). oneDNN and XLA bring it into blocks first, or multiply row after row.
MOST_ROWS, FEWEST_BY_ROWS = 8, 1 << 16


def is_by_rows(sizes: Sizes) -> bool:
    """Whether a product is of a few rows, and its time is that of reading the matrix.

    `product_choices` does not tell: what it measures has the matrix in the cache. On processors
    that have no table, XLA's products of few rows in float32 stay.
    """
    has_rows = sizes.rows == 1 or not sizes.transpose_x
    is_few = sizes.stack == 1 and 1 <= sizes.rows <= MOST_ROWS and has_rows
    is_large = sizes.inner * sizes.columns >= FEWEST_BY_ROWS
    is_known = sizes.dtype is torch.bfloat16 or (sizes.dtype is torch.float32 and are_measured())
    return is_few and is_large and is_known


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
        if not cls._pays(ctx, sizes, is_stacked=bool(stack)):
            return None
        with contextlib.suppress(LoweringError):
            return cls(tuple(stack), *sizes[2:], (given, dtype), bias is not None)
        return None

    @staticmethod
    def _pays(ctx: Context, sizes: Sizes, *, is_stacked: bool) -> bool:
        """Whether a call is faster than XLA's own product."""
        given, known = sizes.dtype, None
        if may_plan(ctx):
            if is_by_rows(sizes):
                return True
            ctx.asked.add(sizes)
            known = choice(sizes)
        if known is not None:
            packs = ONEDNN_PACKED in ctx.libraries and not is_stacked and known.packed != XLA
            return packs or known.plain != XLA
        if given is torch.float32 and not (is_stacked or sizes.transpose_x or sizes.transpose_y):
            return False  # XLA's own are as fast, and faster for few rows
        is_thin = 1 in (sizes.rows, sizes.columns)
        return not is_thin and math.prod(sizes[1:5]) >= max(FEWEST_IN_PRODUCT[given], 1)

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
