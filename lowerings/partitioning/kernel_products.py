"""Calls of kernels for the matrix products of a program that is partitioned, or bounded.

Neither a partitioner nor the rules for bounds see into a call. So rules have written none there,
and the products are `dot_general`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.builders.build import cast
from xla_dynamo.lowerings.builders.functions import operations_of
from xla_dynamo.lowerings.builders.shapes import reshape, transpose
from xla_dynamo.lowerings.builders.values import (
    Value,
    defining_operation,
    dtype_of,
    rank_of,
    shape_of,
)
from xla_dynamo.lowerings.cpu.narrow_weights import narrow_product
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.passes.permuted_operations import integers
from xla_dynamo.lowerings.passes.splits import ProductDimensions
from xla_dynamo.lowerings.table import Context


class _Factor(NamedTuple):
    """A factor as a stack of matrices.

    Attributes:
        sizes: [*stack, free, contracted], or the other way round.
        free: the sizes of what is free.
        is_transposed: whether what is contracted comes before what is free.
    """

    sizes: list[int]
    free: list[int]
    is_transposed: bool


def call_products(main: func.FuncOp, ctx: Context) -> None:
    """Let a kernel compute each product of a function that it accepts, with the bias behind it."""
    for op in operations_of(main):
        if op.name == "stablehlo.dot_general":
            _call(op, ctx)


def _call(op: Any, ctx: Context) -> None:
    (result,), (x, y) = op.results, op.operands
    dims = ProductDimensions(op)
    left = _factor(x, dims.batch[0], dims.contracting[0])
    right = _factor(y, dims.batch[1], dims.contracting[1])
    if left is None or right is None or 0 in (*left.sizes, *right.sizes):
        return
    settings = {
        "dtype": dtype_of(result),
        "transpose_x": left.is_transposed,
        "transpose_y": not right.is_transposed,  # where what is contracted comes last
    }
    bias, total = _bias(result)
    if bias is not None and (dims.batch[0] or shape_of(bias) != (math.prod(right.free),)):
        bias, total = None, result
    last = defining_operation(total)
    with ir.InsertionPoint(op), op.location:
        narrow = _by_narrow_weight(ctx, (x, left), (y, right))
        if narrow is not None:
            result.replace_all_uses_with(cast(reshape(narrow, shape_of(result)), dtype_of(result)))
            op.erase()
            return
    with ir.InsertionPoint(last), op.location:
        factors = reshape(x, left.sizes), reshape(y, right.sizes)
        made = call(ctx, "matrix_product", *factors, bias, **settings)
        if made is None:
            return
        total.replace_all_uses_with(reshape(made, shape_of(total)))
    for unused in dict.fromkeys((last, op)):
        unused.erase()


def _by_narrow_weight(
    ctx: Context, left: tuple[Value, _Factor], right: tuple[Value, _Factor]
) -> Value | None:
    """The product in float32 of rows with a weight that was converted from a narrow dtype."""
    (x, of_x), (y, of_y) = left, right
    if len(of_x.sizes) != 2 or of_x.is_transposed:
        return None
    matrix = reshape(y, of_y.sizes)
    if not of_y.is_transposed:
        matrix = transpose(matrix, [1, 0])
    return narrow_product(ctx, reshape(x, of_x.sizes), matrix)


def _factor(x: Value, batch: Sequence[int], contracting: Sequence[int]) -> _Factor | None:
    """The factor, if its stack comes first, and what is contracted before or behind what is free.

    Dimensions that lie side by side are one.
    """
    shape, stack = shape_of(x), len(batch)
    free = [d for d in range(len(shape)) if d not in (*batch, *contracting)]
    if [*batch] != [*range(stack)]:
        return None
    for order, is_transposed in (([*free, *contracting], False), ([*contracting, *free], True)):
        if order == [*range(stack, len(shape))]:
            parts = (contracting, free) if is_transposed else (free, contracting)
            sizes = [math.prod(shape[d] for d in dims) for dims in parts]
            return _Factor([*shape[:stack], *sizes], [shape[d] for d in free], is_transposed)
    return None


def _bias(result: Value) -> tuple[Value | None, Value]:
    """The vector that is added to each row of a product, if one is, and the sum."""
    uses = list(result.uses)
    if len(uses) != 1 or uses[0].owner.name != "stablehlo.add":
        return None, result
    add = uses[0].owner
    other = add.operands[1 - uses[0].operand_number]
    op = defining_operation(other)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return None, result
    (vector,), last = op.operands, rank_of(result) - 1
    dims = integers(op, "broadcast_dimensions")
    is_row = dims == [last] and shape_of(vector) == shape_of(result)[last:]
    return (vector, add.results[0]) if is_row else (None, result)
