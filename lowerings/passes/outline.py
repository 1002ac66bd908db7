"""Outline operations into functions that XLA does not inline, so that it cannot fuse across them.

The conversion of a convolution's weights, which autocast writes at each call, becomes a function of
rows. XLA:CPU converts by loops along the innermost dimension, of which weights have one or three
elements, and takes two to three times as long as the memory does. A reshape to rows alone does not
help: XLA moves it out of the way, or fuses it.

The update of a part of an array that is read afterwards, as of a cache of keys and values, becomes
a function that updates. XLA would fuse the update with a reshape in one user and compute it again
for the result, on a copy each time. The result of a function exists once, and it is in place where
the array is donated.

The update of an array by what is computed from it, as of rows by the rows before them, becomes a
function, too. Where the array is a reshape of another, XLA:CPU would fuse the two and read elements
that it has overwritten.
"""

import math
from collections.abc import Callable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.cpu_thresholds import ENOUGH_IN_ROW
from xla_dynamo.lowerings.builders.cpu_thresholds import FEWEST_OUTLINED as FEWEST
from xla_dynamo.lowerings.builders.functions import main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import REDUCTIONS, named
from xla_dynamo.lowerings.builders.values import (
    Value,
    defining_name,
    defining_operation,
    numel_of,
    shape_of,
)
from xla_dynamo.lowerings.target import Target

# What XLA computes for itself, and not in one loop with what reads it. It inlines most calls.
_NO_LOOPS = named("convolution custom_call dot_general fft")


def outline(module: ir.Module, target: Target) -> None:
    """Replace conversions of weights, and updates that are read, by calls of private functions.

    Assumes nothing of the module. Leaves alone what is nested in regions, and the functions beside
    `main`.
    """
    for op in operations_of(main_of(module)):
        if op.name == "stablehlo.convert" and _converts_weight(op):
            replacement = _convert_rows
        elif op.name == "stablehlo.dynamic_update_slice" and (
            _has_other_users(op) or _reads_what_it_writes(op)
        ):
            replacement = _update
        else:
            continue
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(replacement(module, op))
        op.erase()


def _converts_weight(op: ir.Operation) -> bool:
    """Whether the operand is an argument in the shape of a kernel, for library calls alone."""
    (x,), (result,) = op.operands, op.results
    shape = shape_of(x)
    if len(shape) < 3 or shape[-1] >= ENOUGH_IN_ROW or numel_of(x) < FEWEST:
        return False
    users = {use.owner.name for use in result.uses}
    return defining_operation(x) is None and users == {"stablehlo.custom_call"}


def _convert_rows(module: ir.Module, op: ir.Operation) -> Value:
    (x,), (result,) = op.operands, op.results
    rows = [shape_of(x)[0], math.prod(shape_of(x)[1:])]
    given, type_ = (ir.RankedTensorType.get(rows, v.type.element_type) for v in (x, result))
    return hlo.reshape(result.type, _outlined(module, op, [hlo.reshape(given, x)], type_))


def _has_other_users(op: ir.Operation) -> bool:
    """Whether an update of a small part has several users, of which the return may be one."""
    whole, part, *_ = map(numel_of, op.operands)
    return whole >= FEWEST and 4 * part <= whole and len(list(op.results[0].uses)) > 1


def _reads_what_it_writes(op: ir.Operation) -> bool:
    """Whether the part of an update depends on a value that the whole is computed from.

    Without a reshape, of the value or of the whole, XLA sees it, too.
    """
    whole, part, *_ = op.operands
    size = numel_of(whole)
    behind = _behind([whole], lambda x: numel_of(x) == size)
    if not any(defining_name(x) == "stablehlo.reshape" for x in behind):
        return False
    return not set(behind).isdisjoint(_behind([part], lambda x: numel_of(x) > 1))


def _behind(values: list[Value], counts: Callable[[Value], bool]) -> list[Value]:
    """These values, and those they are computed from in one loop, as far as they count."""
    found, stack = set(values), list(values)
    while stack:
        op = defining_operation(stack.pop())
        if op is None or op.name in _NO_LOOPS or (op.regions and op.name not in REDUCTIONS):
            continue
        for operand in op.operands:
            if counts(operand) and operand not in found:
                found.add(operand)
                stack.append(operand)
    return list(found)


def _update(module: ir.Module, op: ir.Operation) -> Value:
    return _outlined(module, op, list(op.operands), op.results[0].type)


def _outlined(
    module: ir.Module, op: ir.Operation, operands: Sequence[Value], type_: ir.Type
) -> Value:
    """A call of a function that has a copy of an operation, on these operands."""

    def body(*arguments: Value) -> Value:
        copy = op.clone().operation
        for index, argument in enumerate(arguments):
            copy.operands[index] = argument
        copy.results[0].set_type(type_)
        return copy.results[0]

    return call_outlined(module, op.name.split(".")[-1], operands, type_, body)


def call_outlined(
    module: ir.Module,
    name: str,
    operands: Sequence[Value],
    type_: ir.Type,
    body: Callable[..., Value],
) -> Value:
    """Add a private function to a module, and call it at the insertion point.

    Args:
        module: where the function goes.
        name: its name, to which MLIR adds a number where there is such a function already.
        operands: the operands of the call.
        type_: the type of the result.
        body: builds the result from the function's arguments.

    Returns:
        The result of the call, which XLA does not inline.
    """
    with ir.InsertionPoint(module.body):
        given = [operand.type for operand in operands]
        function = func.FuncOp(name, (given, [type_]), visibility="private")
        ir.SymbolTable(module.operation).insert(function)  # renames it if it must
        with ir.InsertionPoint(function.add_entry_block()):
            func.ReturnOp([body(*function.arguments)])
    call = func.CallOp(function, operands)
    inlineable = {"inlineable": ir.StringAttr.get("false")}
    call.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(inlineable)
    return call.results[0]
