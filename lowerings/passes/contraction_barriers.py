"""Add -0.0 to results of operators, as barriers that keep XLA and LLVM from combining operators.

Eager's operators leave their results in memory, rounded, infinite or NaN. Inside one program XLA
reassociates and simplifies by the rules of real numbers: (x + 1e8) - 1e8 is x, (x * 1e30) * 1e-30
is x, (a / b) / c is a / (b * c), sqrt(x * x) is |x|, log(exp(x)) is x. No option forbids it: XLA's
algebraic simplifier is one pass. On the CPU LLVM besides contracts a product and the sum, or the
reduction, that reads it into a fused multiply-add, which rounds once: `p - p.amax()` of
`p = a * 0.1`, 0 at the maximum, then is the rounding error of the product, of either sign, and its
square root a NaN.

The barrier is the addition of a -0.0 that is an argument of the program. It is exact for every
number, and XLA cannot know it. LLVM contracts the product and this addition, which rounds the
product and nothing else. (A factor of one would do, did XLA not multiply scalars first.) Operations
within one operator have no barriers between them: XLA and LLVM combine them as they like, as
compilers do those of eager's own kernels.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.functions import add_argument, main_of
from xla_dynamo.lowerings.builders.operation_names import REDUCTIONS, SUMS
from xla_dynamo.lowerings.builders.values import Value, defining_operation, is_value
from xla_dynamo.lowerings.passes.combinations import (
    CANDIDATES,
    combines,
    ends_in_product,
    forwards_elements,
    hides_its_body,
    is_view,
    result_element,
)
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.target import Target

# An attribute of operations: it has to stay with them while other passes move and copy them.
_MARK = "xla_dynamo.result"
_INEXACT = ir.F16Type | ir.BF16Type | ir.F32Type | ir.F64Type | ir.ComplexType
NEGATIVE_ZERO = torch.tensor(-0.0)


def mark_results(result: Any) -> None:
    """Mark the operations that compute a node's result, behind its views: the candidates."""
    for value in result if isinstance(result, tuple | list) else [result]:
        if is_value(value):
            _mark(value)


def _mark(value: Value) -> None:
    while (op := defining_operation(value)) is not None:
        name = op.name
        view = is_view(op, name)
        if view and _MARK in op.attributes:
            break
        if view or _is_candidate(op, name):
            op.attributes[_MARK] = ir.UnitAttr.get()
        if name == "stablehlo.complex":
            mark_results(list(op.operands))
        if not view:
            break
        value = op.operands[0]


def _is_candidate(op: ir.Operation, name: str) -> bool:
    """Whether there are users that an operation could be combined with."""
    return name in CANDIDATES and len(op.results) == 1 and isinstance(result_element(op), _INEXACT)


def insert_barriers(module: ir.Module, target: Target) -> Notes | None:
    """Add -0.0 to results that XLA or LLVM could contract or reassociate with their users.

    Assumes the marks of `mark_results`, and removes them. In a part of a program of JAX's there are
    no barriers, as JAX has none.

    Returns:
        Where there is a barrier, that `main` has another argument behind the others, an f32[] that
        the caller passes `NEGATIVE_ZERO` for.
    """
    marked, sums = _take_marks(module)
    if target.embedded:
        return None
    # On the CPU a product and a sum become a fused multiply-add.
    summed = _values_summed(sums) if target.is_cpu else set()
    negative_zero: Value | None = None
    for op in marked:
        is_contracted = op.results[0] in summed and ends_in_product(op)
        if is_contracted or any(combines(user, op) for user in _users(op)):
            if negative_zero is None:
                type_ = ir.RankedTensorType.get([], ir.F32Type.get())
                negative_zero = add_argument(main_of(module), type_)
            _insert_barrier(op, negative_zero)
    return None if negative_zero is None else Notes(takes_negative_zero=True)


def remove_marks(module: ir.Module) -> None:
    """Remove the marks of `mark_results`, where no barriers are to come."""
    _take_marks(module)


def _take_marks(module: ir.Module) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """Remove all marks: the marked operations without the views, and those that may be sums."""
    marked: list[ir.Operation] = []
    sums: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name in SUMS or hides_its_body(name) or _reduces_by_sums(op, name):
            sums.append(op)
        if _MARK in op.attributes:
            del op.attributes[_MARK]
            if not is_view(op, name):
                marked.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return marked, sums


def _reduces_by_sums(op: ir.Operation, name: str) -> bool:
    """Whether an operation is a reduction, or one of windows, by sums."""
    return name in REDUCTIONS and op.regions[0].blocks[0].operations[0].name in SUMS


def _values_summed(sums: list[ir.Operation]) -> set[Value]:
    """The operands of sums, and the values that these have their elements from."""
    waiting = [operand for op in sums for operand in op.operands]
    summed: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value not in summed:
            summed.add(value)
            op = defining_operation(value)
            if op is not None and forwards_elements(op, op.name):
                waiting += op.operands
    return summed


def _users(op: ir.Operation) -> Iterator[ir.Operation]:
    """The users of a result and of its views."""
    waiting = [op.results[0]]
    while waiting:
        for use in waiting.pop().uses:
            user = use.owner
            yield user
            if is_view(user, user.name):
                waiting.append(user.results[0])


def _insert_barrier(op: ir.Operation, zero: Value) -> None:
    """Give the users of an operation its result plus a scalar -0.0 (of float32)."""
    (result,) = op.results
    with ir.InsertionPoint.after(op), op.location:
        element = _converted(zero, result_element(op))
        everywhere = hlo.broadcast_in_dim(result.type, element, ir.DenseI64ArrayAttr.get([]))
        barrier = hlo.add(result, everywhere)
    result.replace_all_uses_except(barrier, barrier.owner.operation)


def _converted(zero: Value, element: ir.Type) -> Value:
    """A scalar as an element type; as a complex one, both parts are the scalar."""
    if isinstance(element, ir.ComplexType):
        part = _converted(zero, element.element_type)
        return hlo.complex(part, part)
    if zero.type.element_type == element:
        return zero
    return hlo.convert(ir.RankedTensorType.get([], element), zero)
