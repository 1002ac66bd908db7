"""Custom calls of libraries, whose operands and results lie in memory as the library wants them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.values import Value

# The names under which `Context.libraries` has oneDNN, its kernels for bfloat16, and torch's.
ONEDNN, ONEDNN_BFLOAT16, TORCH = "onednn", "onednn_bfloat16", "torch"


def channels_last(rank: int) -> list[int]:
    """The dimensions of an image from the outermost in memory to the innermost, the channels."""
    return [0, *range(2, rank), 1]


def library_call(
    target: str,
    config: ir.Attribute,
    operands: Sequence[Value],
    orders: Sequence[Sequence[int]],
    types: Sequence[ir.Type],
    result_orders: Sequence[Sequence[int]],
    **attributes: Any,
) -> list[Value]:
    """The results of a call, of these types.

    Args:
        target: the name that XLA knows the function by.
        config: its configuration, in the form that it reads.
        operands: its operands.
        orders: for each of them, its dimensions from the outermost in memory to the innermost.
        types: of the results.
        result_orders: the same for the results.
        attributes: others of the operation.
    """
    op = hlo.CustomCallOp(
        list(types),
        list(operands),
        target,
        backend_config=config,
        operand_layouts=ir.ArrayAttr.get([_layout(order) for order in orders]),
        result_layouts=ir.ArrayAttr.get([_layout(order) for order in result_orders]),
        **attributes,
    )
    return list(op.results)


def _layout(order: Sequence[int]) -> ir.Attribute:
    """A layout as XLA has it: dimensions from the innermost in memory to the outermost."""
    return ir.DenseIntElementsAttr.get(np.asarray(order[::-1]), type=ir.IndexType.get())
