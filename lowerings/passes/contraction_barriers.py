"""Results that stay what their operator gave, where XLA would make one operation of two operators.

Eager's operators leave their results in memory, rounded, infinite or NaN. In one program XLA joins
what it may by the rules of real numbers: (x + 1e8) - 1e8 is x, (x * 1e30) * 1e-30 is x,
(a / b) / c is a / (b * c), sqrt(x * x) is |x|, log(exp(x)) is x (no option forbids it: its
algebraic simplifier is one pass). On the CPU LLVM besides makes one operation of a product and the
sum that follows, or the reduction, rounded once (a fused multiply-add): `p - p.amax()` of
`p = a * 0.1`, 0 at the maximum, then is the rounding error of the product, of either sign, and its
square root a NaN.

So to a node's result that is read by what it could be joined with, a -0.0 is added that is an
argument of the program: exact for every number, and XLA cannot know it. LLVM makes one operation
of a product and this sum, which rounds the product and nothing else. (Times a one would do, did XLA
not multiply scalars first.) Operations of one operator are joined as XLA and LLVM like, and so are
those of eager's own kernels.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.functions import add_argument, defining_operation, main_of
from xla_dynamo.lowerings.builders.values import is_known
from xla_dynamo.lowerings.target import Target

_MARK, _HAS_NEGATIVE_ZERO = "xla_dynamo.result", "xla_dynamo.has_negative_zero"


def _names(names: str) -> frozenset[str]:
    return frozenset("stablehlo." + name for name in names.split())


# What XLA joins with the results of which operations, some of them under conditions (`_joins`).
_JOINED = {
    "stablehlo.add": _names("add multiply subtract"),
    "stablehlo.subtract": _names("add multiply subtract"),
    "stablehlo.multiply": _names("exponential multiply"),
    "stablehlo.divide": _names("divide exponential power"),
    "stablehlo.log": _names("exponential power rsqrt sqrt"),
    "stablehlo.power": _names("exponential multiply power"),
    "stablehlo.sqrt": _names("divide multiply power"),
    "stablehlo.rsqrt": _names("divide multiply power"),
    # x >= 0 is true of what cannot be below zero, also if it is NaN.
    "stablehlo.compare": _names("abs exponential maximum minimum multiply power select"),
}
_SUMS = _names("add subtract")
# What ends in a product, as far as LLVM sees, some of it under conditions (`_ends_in_product`).
_PRODUCTS = {*_names("divide dot_general exponential multiply power"), "chlo.erf_inv", "func.call"}
_KEPT = _PRODUCTS.union(*_JOINED.values())
# Within these, or behind them, anything may read what they are given: XLA puts it in their place.
_INLINED = {*_names("case if return while"), "func.call"}
_REDUCTIONS = _names("reduce reduce_window")
_VIEWS = _names("broadcast_in_dim negate reshape reverse slice transpose")
# What else gives on a product as it is, in one loop with the sum that reads it.
_CHOICES = _names(
    "complex concatenate dynamic_slice dynamic_update_slice gather imag pad real select"
)
_INEXACT = ir.F16Type | ir.BF16Type | ir.F32Type | ir.F64Type | ir.ComplexType
NEGATIVE_ZERO = torch.tensor(-0.0)


def mark_results(result: Any) -> None:
    """Note what of a node's result, or of what it is a view of, may have to be kept."""
    for value in result if isinstance(result, tuple | list) else [result]:
        while (op := defining_operation(value)) is not None:
            name = op.name
            view = _is_view(op, name)
            if view and _MARK in op.attributes:
                break
            if view or (
                name in _KEPT and len(op.results) == 1 and isinstance(_element(op), _INEXACT)
            ):
                op.attributes[_MARK] = ir.UnitAttr.get()
            if name == "stablehlo.complex":
                mark_results(list(op.operands))
            if not view:
                break
            value = op.operands[0]


def insert_barriers(module: ir.Module, target: Target) -> None:
    """Add -0.0 to results that XLA or LLVM could contract or reassociate with what reads them.

    Assumes the marks of `mark_results`, and takes them away. Leaves, where it is needed, another
    argument of main behind the others, an f32[] that the caller passes `NEGATIVE_ZERO` for; see
    `take_negative_zero`.
    """
    main = main_of(module)
    negative_zero: ir.Value | None = None
    marked: list[ir.Operation] = []
    sums: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        if name in _SUMS or _is_opaque(name) or _sums_up(op, name):
            sums.append(op)
        if _MARK in op.attributes:
            del op.attributes[_MARK]
            if not _is_view(op, name):
                marked.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    # On the CPU a product and a sum become a fused multiply-add.
    summed = _given_to(sums) if target.is_cpu else set()
    for op in marked:
        fused = op.results[0] in summed and _ends_in_product(op)
        if fused or any(_joins(reader, op) for reader in _readers(op)):
            if negative_zero is None:
                negative_zero = add_argument(main, ir.RankedTensorType.get([], ir.F32Type.get()))
            _add_zero(op, negative_zero)
    if negative_zero is not None:
        main.attributes[_HAS_NEGATIVE_ZERO] = ir.UnitAttr.get()


def take_negative_zero(main: func.FuncOp) -> bool:
    """Whether `insert_barriers` has added an argument; the note of it is taken off the function."""
    found = _HAS_NEGATIVE_ZERO in main.attributes
    if found:
        del main.attributes[_HAS_NEGATIVE_ZERO]
    return found


def _sums_up(op: ir.Operation, name: str) -> bool:
    """Whether an operation is a reduction, or one of windows, by sums."""
    return name in _REDUCTIONS and op.regions[0].blocks[0].operations[0].name in _SUMS


def _is_opaque(name: str) -> bool:
    """Whether what an operation does with its operands is not to be seen yet."""
    return name in _INLINED or name.startswith("chlo.")


def _given_to(sums: list[ir.Operation]) -> set[ir.Value]:
    """The operands of sums, and what they are views of, or chosen from."""
    waiting = [operand for op in sums for operand in op.operands]
    summed: set[ir.Value] = set()
    while waiting:
        value = waiting.pop()
        if value not in summed:
            summed.add(value)
            maker = defining_operation(value)
            if maker is not None and (maker.name in _CHOICES or _is_view(maker, maker.name)):
                waiting += maker.operands
    return summed


def _ends_in_product(op: ir.Operation) -> bool:
    """Whether the last that an operation does may be a product, as far as LLVM sees."""
    if not isinstance(_element(op), ir.F32Type | ir.F64Type):
        return False
    if op.name == "stablehlo.divide":  # XLA multiplies by what is one number for many elements
        maker = defining_operation(op.operands[1])
        shared = maker is not None and maker.name == "stablehlo.broadcast_in_dim"
        return shared or is_known(op.operands[1])
    if op.name == "stablehlo.dot_general":
        return _is_outer_product(op)
    if op.name in _SUMS:  # with zeros, in whose place XLA puts the product
        makers = [defining_operation(operand) for operand in op.operands]
        return _has_constant(op) and any(m and m.name in _PRODUCTS for m in makers)
    return op.name in _PRODUCTS


def _joins(reader: ir.Operation, op: ir.Operation) -> bool:
    """Whether XLA makes an operation one with the `op` that it reads, as `_JOINED` tells."""
    outer, inner = reader.name, "stablehlo.multiply" if _is_outer_product(op) else op.name
    if _is_opaque(outer):
        return True
    if inner not in _JOINED.get(outer, ()):
        return False
    if outer == "stablehlo.compare":
        return _has_constant(reader)
    if outer in _SUMS:  # (a + 1) + 2, and a * 2 + b * 2
        return _has_constant(op) and (inner not in _SUMS or _has_constant(reader))
    if inner == "stablehlo.exponential":
        return outer != "stablehlo.multiply" or all(map(_is_exponential, reader.operands))
    if outer == "stablehlo.multiply":  # of the factors the scalars are multiplied first
        return _has_constant(op) and (_has_scalar(reader) or not _shape(reader))
    return True


def _readers(op: ir.Operation) -> Iterator[ir.Operation]:
    """What reads a result, or a view of it."""
    waiting = [op.results[0]]
    while waiting:
        for use in waiting.pop().uses:
            reader = use.owner
            yield reader
            if _is_view(reader, reader.name):
                waiting.append(reader.results[0])


def _is_view(op: ir.Operation, name: str) -> bool:
    """Whether an operation gives on single elements of its first operand, or minus them."""
    if name == "stablehlo.reduce":  # of single elements
        return len(op.results) == 1 and _size(op.operands[0]) == _size(op.results[0])
    return name in _VIEWS


def _is_outer_product(op: ir.Operation) -> bool:
    """Whether an operation is a matrix product of single elements: XLA multiplies them."""
    if op.name != "stablehlo.dot_general":
        return False
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    shape = ir.RankedTensorType(op.operands[0].type).shape
    return all(shape[d] == 1 for d in numbers.lhs_contracting_dimensions)


def _is_exponential(value: ir.Value) -> bool:
    """Whether a value is an exponential, or a view of one."""
    while (op := defining_operation(value)) is not None:
        if op.name == "stablehlo.exponential":
            return True
        if not _is_view(op, op.name):
            return False
        value = op.operands[0]
    return False


def _has_constant(op: ir.Operation) -> bool:
    return any(is_known(operand) for operand in op.operands)


def _has_scalar(op: ir.Operation) -> bool:
    """Whether an operand is one number for all elements, known or not."""
    makers = [
        maker for operand in op.operands if (maker := defining_operation(operand)) is not None
    ]
    broadcasts = [maker for maker in makers if maker.name == "stablehlo.broadcast_in_dim"]
    return _has_constant(op) or any(_size(maker.operands[0]) == 1 for maker in broadcasts)


def _add_zero(op: ir.Operation, zero: ir.Value) -> None:
    result = op.results[0]
    type_ = ir.RankedTensorType(result.type)
    with ir.InsertionPoint.after(op), op.location:
        element = _element(op)
        if isinstance(element, ir.ComplexType):
            if element.element_type != zero.type.element_type:
                part = ir.RankedTensorType.get([], element.element_type)
                zero = hlo.convert(part, zero)
            zero = hlo.complex(zero, zero)
        elif zero.type.element_type != element:
            zero = hlo.convert(ir.RankedTensorType.get([], element), zero)
        everywhere = hlo.broadcast_in_dim(type_, zero, ir.DenseI64ArrayAttr.get([]))
        kept = hlo.add(result, everywhere)
    result.replace_all_uses_except(kept, kept.owner.operation)


def _element(op: ir.Operation) -> ir.Type:
    return ir.RankedTensorType(op.results[0].type).element_type


def _shape(op: ir.Operation) -> list[int]:
    return ir.RankedTensorType(op.results[0].type).shape


def _size(value: ir.Value) -> int:
    return math.prod(ir.RankedTensorType(value.type).shape)
