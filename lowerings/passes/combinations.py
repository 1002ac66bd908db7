"""Which operations XLA and LLVM combine with their users: contraction and reassociation."""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.operation_names import SUMS, VIEWS, named
from xla_dynamo.lowerings.builders.values import (
    Value,
    defining_name,
    defining_operation,
    is_known,
    numel_of,
)

# By a user, the operations that XLA's algebraic simplifier combines it with, some of them under
# conditions (`combines`).
_COMBINED = {
    "stablehlo.add": named("add multiply subtract"),
    "stablehlo.subtract": named("add multiply subtract"),
    "stablehlo.multiply": named("exponential multiply"),
    "stablehlo.divide": named("divide exponential power"),
    "stablehlo.log": named("exponential power rsqrt sqrt"),
    "stablehlo.power": named("exponential multiply power"),
    "stablehlo.sqrt": named("divide multiply power"),
    "stablehlo.rsqrt": named("divide multiply power"),
    # x >= 0 is true of what cannot be below zero, also if it is NaN.
    "stablehlo.compare": named("abs exponential maximum minimum multiply power select"),
}
# Operations that end in a product, as far as LLVM sees, some under conditions (`ends_in_product`).
_PRODUCTS = named("divide dot_general exponential multiply power") | {
    "chlo.erf_inv",
    "func.call",
}
# All operations that may be combined with a user.
CANDIDATES = _PRODUCTS.union(*_COMBINED.values())
# XLA inlines what these contain or call, so any operation there may be a user of their operands,
# and any may compute their results.
_INLINED = named("case if return while") | {"func.call"}
_VIEWS_AND_NEGATE = VIEWS | named("negate")
# Operations besides views that forward elements of their operands, in one loop with their user.
_FORWARDING = named(
    "complex concatenate dynamic_slice dynamic_update_slice gather imag pad real select"
)


def combines(user: ir.Operation, op: ir.Operation) -> bool:
    """Whether XLA combines an operation with a user, as `_COMBINED` tells."""
    outer, inner = user.name, "stablehlo.multiply" if _is_outer_product(op) else op.name
    if hides_its_body(outer):
        return True
    if inner not in _COMBINED.get(outer, ()):
        return False
    if outer == "stablehlo.compare":
        return _has_constant(user)
    if outer in SUMS:  # (a + 1) + 2, and a * 2 + b * 2
        return _has_constant(op) and (inner not in SUMS or _has_constant(user))
    if inner == "stablehlo.exponential":
        return outer != "stablehlo.multiply" or all(map(_is_exponential, user.operands))
    if outer == "stablehlo.multiply":  # of the factors the scalars are multiplied first
        return _has_constant(op) and (_has_scalar(user) or _is_scalar(user))
    return True


def ends_in_product(op: ir.Operation) -> bool:
    """Whether the last instruction of an operation may be a product, as far as LLVM sees."""
    if not isinstance(result_element(op), ir.F32Type | ir.F64Type):
        return False
    if op.name == "stablehlo.divide":  # XLA multiplies by the reciprocal of a shared divisor
        divisor = op.operands[1]
        return defining_name(divisor) == "stablehlo.broadcast_in_dim" or is_known(divisor)
    if op.name == "stablehlo.dot_general":
        return _is_outer_product(op)
    if op.name in SUMS:  # XLA replaces the sum of a product and zeros by the product
        return _has_constant(op) and any(defining_name(x) in _PRODUCTS for x in op.operands)
    return op.name in _PRODUCTS


def hides_its_body(name: str) -> bool:
    """Whether an operation's operands have users that are not to be seen yet."""
    return name in _INLINED or name.startswith("chlo.")


def is_view(op: ir.Operation, name: str) -> bool:
    """Whether a result has elements of its first operand, or their negatives, and nothing else."""
    if name == "stablehlo.reduce":  # over dimensions of size 1
        return len(op.results) == 1 and numel_of(op.operands[0]) == numel_of(op.results[0])
    return name in _VIEWS_AND_NEGATE


def forwards_elements(op: ir.Operation, name: str) -> bool:
    """Whether the elements of a result are elements of some of the operands, or their negatives."""
    return name in _FORWARDING or is_view(op, name)


def result_element(op: ir.Operation) -> ir.Type:
    """The element type of an operation's first result."""
    return ir.RankedTensorType(op.results[0].type).element_type


def _is_outer_product(op: ir.Operation) -> bool:
    """Whether an operation is a matrix product over sizes of 1: XLA makes it a multiplication."""
    if op.name != "stablehlo.dot_general":
        return False
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    shape = ir.RankedTensorType(op.operands[0].type).shape
    return all(shape[d] == 1 for d in numbers.lhs_contracting_dimensions)


def _is_exponential(value: Value) -> bool:
    """Whether a value is an exponential, or a view of one."""
    while (op := defining_operation(value)) is not None:
        if op.name == "stablehlo.exponential":
            return True
        if not is_view(op, op.name):
            return False
        value = op.operands[0]
    return False


def _has_constant(op: ir.Operation) -> bool:
    return any(map(is_known, op.operands))


def _has_scalar(op: ir.Operation) -> bool:
    """Whether an operand has one number for all elements, known or not."""
    return _has_constant(op) or any(map(_is_broadcast_scalar, op.operands))


def _is_broadcast_scalar(value: Value) -> bool:
    op = defining_operation(value)
    if op is None or op.name != "stablehlo.broadcast_in_dim":
        return False
    return numel_of(op.operands[0]) == 1


def _is_scalar(op: ir.Operation) -> bool:
    return ir.RankedTensorType(op.results[0].type).rank == 0
