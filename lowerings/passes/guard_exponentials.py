"""Replace exp(x) by where(x != x, x, exp(x)) in modules in which XLA:CPU may know a NaN beforehand.

XLA:CPU writes exp(x) with a conversion of x to an integer. Of a NaN constant LLVM makes "poison" of
that conversion, and of the exponential whatever lies in memory, or the other branch of a select:
`exp(where(mask, nan, 1.0))` is e everywhere. The select of this pass is right, but takes 15% longer
than exp alone and half as long again in a softmax (1024 x 1024, one thread), so only modules that
may have a constant NaN get it.
"""

import math
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.operation_names import RESHAPES, SUMS, named
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.target import Target

# Operations that XLA writes with an exponential. (Its power, erf and tanh are sound.)
_EXPONENTIALS = named("exponential exponential_minus_one logistic") | named("sinh cosh", "chlo")
# Operations that XLA evaluates on constants: NaN may come of an infinity, or of any numbers.
_NAN_FROM_INFINITY = SUMS | named("multiply")
_NAN_FROM_ANY = named("divide remainder power sqrt rsqrt log log_plus_one")
_SAME_NUMBERS = RESHAPES | named("convert")


def guard_exponentials(module: ir.Module, target: Target) -> None:
    """Make exponentials of NaN be NaN in a module in which XLA may know a NaN beforehand.

    That is a module with a NaN among its constants, with arithmetic on an infinite constant (XLA
    makes x + (inf - inf) of (x + inf) - inf), or with the like of log(-1) and 0 / 0. Assumes
    nothing of the module. Leaves every other module as it is, and complex exponentials.
    """
    search = _Search()
    module.operation.walk(search.visit)
    if search.may_find_nan:
        for op in search.exponentials:
            _guard(op)


class _Search:
    """What a walk over a module finds.

    Attributes:
        exponentials: the operations to guard.
        may_find_nan: whether XLA may compute a NaN from constants.
    """

    def __init__(self) -> None:
        self.exponentials: list[ir.Operation] = []
        self.may_find_nan = False
        # By each value that is computed from constants alone, whether it may be infinite.
        self._constants: dict[Value, bool] = {}

    def visit(self, op: ir.Operation) -> ir.WalkResult:
        """Look at one operation, after those that compute its operands."""
        name = op.name
        if name in _EXPONENTIALS:
            if _is_real(op.results[0]):
                self.exponentials.append(op)
        elif name == "stablehlo.constant":
            if _is_real(op.results[0]):
                self._constant(op)
        elif name in _SAME_NUMBERS:
            if op.operands[0] in self._constants:
                self._constants[op.results[0]] = self._constants[op.operands[0]]
        elif name in _NAN_FROM_INFINITY or name in _NAN_FROM_ANY:
            self._arithmetic(op, name)
        return ir.WalkResult.ADVANCE

    def _constant(self, op: ir.Operation) -> None:
        numbers = _numbers(op.attributes["value"])
        self.may_find_nan |= bool(np.isnan(numbers).any())
        self._constants[op.results[0]] = bool(np.isinf(numbers).any())

    def _arithmetic(self, op: ir.Operation, name: str) -> None:
        operands = [self._constants.get(operand) for operand in op.operands]
        is_constant = None not in operands
        self.may_find_nan |= any(operands) or (name in _NAN_FROM_ANY and is_constant)
        if is_constant:
            self._constants[op.results[0]] = any(operands)


def _is_real(x: Value) -> bool:
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
        is_nan = hlo.compare(x, x, hlo.ComparisonDirectionAttr.get("NE"))
        unguarded = op.clone()
        guarded = hlo.select(is_nan, x, unguarded.results[0])
    op.results[0].replace_all_uses_with(guarded)
    op.erase()
