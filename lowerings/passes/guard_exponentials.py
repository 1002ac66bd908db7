"""Exponentials of numbers that are NaN whatever the inputs are, which XLA:CPU gets wrong.

XLA:CPU writes exp(x) with a conversion of x to an integer. Of a NaN that it knows beforehand, LLVM
makes "poison" of that conversion, and of the exponential whatever lies in memory, or the other
branch of a choice: `exp(where(mask, nan, 1.0))` is e everywhere. `where(x != x, x, exp(x))` is
right, but takes 15% longer than exp alone and half as long again in a softmax (1024 x 1024, one
thread), so it is written only into programs that may know a NaN.
"""

import math
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.target import Target

# What is written with an exponential when XLA gets it. (Its power, erf and tanh are sound.)
_NAMES = ("exponential", "exponential_minus_one", "logistic")
_EXPONENTIALS = {"chlo.sinh", "chlo.cosh"} | {"stablehlo." + name for name in _NAMES}
# What XLA computes beforehand, and may make NaN of infinity, or of finite numbers too.
_OF_INFINITY = {"stablehlo." + name for name in ("add", "subtract", "multiply")}
_OF_ANY = {
    "stablehlo." + name
    for name in ("divide", "remainder", "power", "sqrt", "rsqrt", "log", "log_plus_one")
}
_SAME_NUMBER = {"stablehlo." + name for name in ("broadcast_in_dim", "reshape", "convert")}


def guard_exponentials(module: ir.Module, target: Target) -> None:
    """Let exponentials of NaN be NaN in a module in which XLA may know a NaN beforehand.

    That is one with a NaN among its constants, with arithmetic on an infinite constant (XLA makes
    x + (inf - inf) of (x + inf) - inf), or with the like of log(-1) and 0 / 0.
    """
    exponentials: list[ir.Operation] = []
    known: dict[ir.Value, bool] = {}  # the constants, and whether they are infinite
    may_be_nan = False

    def visit(op: ir.Operation) -> ir.WalkResult:
        nonlocal may_be_nan
        name = op.name
        if name in _EXPONENTIALS:
            if _is_real(op.results[0]):
                exponentials.append(op)
        elif name == "stablehlo.constant":
            if _is_real(op.results[0]):
                numbers = _numbers(op.attributes["value"])
                may_be_nan |= bool(np.isnan(numbers).any())
                known[op.results[0]] = bool(np.isinf(numbers).any())
        elif name in _SAME_NUMBER:
            if op.operands[0] in known:
                known[op.results[0]] = known[op.operands[0]]
        elif name in _OF_INFINITY or name in _OF_ANY:
            operands = [known.get(operand) for operand in op.operands]
            may_be_nan |= any(operands) or (name in _OF_ANY and None not in operands)
            if None not in operands:
                known[op.results[0]] = any(operands)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    if may_be_nan:
        for op in exponentials:
            _guard(op)


def _is_real(x: ir.Value) -> bool:
    return isinstance(ir.RankedTensorType(x.type).element_type, ir.FloatType)


def _numbers(constant: ir.DenseElementsAttr) -> Any:
    if constant.is_splat:
        return ir.FloatAttr(constant.get_splat_value()).value
    if isinstance(constant.type.element_type, ir.F32Type | ir.F64Type):
        return np.asarray(constant)
    return math.nan  # MLIR's Python does not read arrays of other types: there may be one


def _guard(op: ir.Operation) -> None:
    x = op.operands[0]
    with ir.InsertionPoint(op):
        different = hlo.compare(x, x, hlo.ComparisonDirectionAttr.get("NE"))
        unguarded = op.clone()
        guarded = hlo.select(different, x, unguarded.results[0])
    op.results[0].replace_all_uses_with(guarded)
    op.erase()
