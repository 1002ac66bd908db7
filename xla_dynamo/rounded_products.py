"""Products that are rounded before a sum, as eager's are, which lie in memory in between.

XLA:CPU lets LLVM make one operation of a product and the sum or difference that follows, rounded
once (a fused multiply-add; no option of XLA's forbids it). What eager makes 0, as `p - p.amax()`
of `p = a * 0.1` is at the maximum, then is the rounding error of the product, of either sign, and
its square root a NaN. So to the product that is a node's result is added a -0.0 that is an argument
of the program: LLVM makes one operation of these two, which rounds the product and nothing else.
(Times a one would do, did XLA not multiply scalars first.) Where product and sum are of one
operator, and where a reduction sums products, they are left to LLVM.
"""

from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

_MARK = "xla_dynamo.product"
_SUMS = {"stablehlo.add", "stablehlo.subtract"}
_VIEWS = {
    "stablehlo." + name
    for name in ("broadcast_in_dim", "negate", "reshape", "reverse", "slice", "transpose")
}
# What else gives on a product as it is, in one loop with the sum that reads it.
_CHOICES = {
    "stablehlo." + name
    for name in ("concatenate", "dynamic_slice", "dynamic_update_slice", "gather", "pad", "select")
}
NOTHING = torch.tensor(-0.0)


def mark_products(result: Any) -> None:
    """Note the products among the values of a node's result, and those it is a view of."""
    for value in result if isinstance(result, tuple | list) else [result]:
        while isinstance(value, ir.Value) and not isinstance(value.owner, ir.Block):
            op = value.owner
            if op.name not in _VIEWS:
                if _is_product(op):
                    op.attributes[_MARK] = ir.UnitAttr.get()
                break
            value = op.operands[0]


def _is_product(op: ir.Operation) -> bool:
    """Whether an operation is a product of elements, or a matrix product of single elements."""
    type_ = op.results[0].type
    if not isinstance(ir.RankedTensorType(type_).element_type, ir.F32Type | ir.F64Type):
        return False
    if op.name == "stablehlo.dot_general":  # XLA makes it a product of elements
        numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
        shape = ir.RankedTensorType(op.operands[0].type).shape
        return all(shape[d] == 1 for d in numbers.lhs_contracting_dimensions)
    return op.name == "stablehlo.multiply"


def round_products(module: ir.Module, nothing: ir.Value) -> None:
    """Add `nothing`, an argument of main that is -0.0 (f32[]), to marked products in sums."""
    marked: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if _MARK in op.attributes:
            del op.attributes[_MARK]
            marked.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in marked:
        if _is_summed(op.results[0]):
            _round(op, nothing)


def _is_summed(product: ir.Value) -> bool:
    """Whether a sum or a difference reads a product, or what gives it on."""
    waiting, seen = [product], {product}
    while waiting:
        for use in waiting.pop().uses:
            op = use.owner
            if op.name in _SUMS:
                return True
            if op.name in _VIEWS | _CHOICES and op.results[0] not in seen:
                seen.add(op.results[0])
                waiting.append(op.results[0])
    return False


def _round(op: ir.Operation, nothing: ir.Value) -> None:
    product = op.results[0]
    type_ = ir.RankedTensorType(product.type)
    with ir.InsertionPoint.after(op), op.location:
        if nothing.type.element_type != type_.element_type:
            nothing = hlo.convert(ir.RankedTensorType.get([], type_.element_type), nothing)
        everywhere = hlo.broadcast_in_dim(type_, nothing, ir.DenseI64ArrayAttr.get([]))
        rounded = hlo.add(product, everywhere)
    product.replace_all_uses_except(rounded, rounded.owner.operation)
