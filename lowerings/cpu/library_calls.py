"""Custom calls of libraries, with operands and results in the layouts that the library wants."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import type_in_order
from xla_dynamo.lowerings.builders.shapes import transpose
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.torch_private import invert_perm

# The names under which `Context.libraries` has oneDNN, its kernels for bfloat16, and torch's.
ONEDNN, ONEDNN_BFLOAT16, TORCH = "onednn", "onednn_bfloat16", "torch"


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

    What it takes and gives is row-major, by transposes, which cancel each other and those of the
    model; a layout in place of one XLA keeps to, but by copies.

    Args:
        target: the name that XLA knows the function by.
        config: its configuration, in the form that it reads.
        operands: its operands.
        orders: for each of them, its dimensions from the outermost in memory to the innermost.
        types: of the results.
        result_orders: the same for the results.
        attributes: others of the operation.
    """
    given = [transpose(x, order) for x, order in zip(operands, orders, strict=True)]
    made = [type_in_order(t, order) for t, order in zip(types, result_orders, strict=True)]
    op = hlo.CustomCallOp(
        made,
        given,
        target,
        backend_config=config,
        operand_layouts=ir.ArrayAttr.get([_row_major(x.type) for x in given]),
        result_layouts=ir.ArrayAttr.get([_row_major(t) for t in made]),
        **attributes,
    )
    results = zip(op.results, result_orders, strict=True)
    return [transpose(result, invert_perm(order)) for result, order in results]


def _row_major(given: ir.Type) -> ir.Attribute:
    """A layout as XLA has it: dimensions from the innermost in memory to the outermost."""
    order = np.arange(given.rank)[::-1].copy()
    return ir.DenseIntElementsAttr.get(order, type=ir.IndexType.get())
