"""Operations in functions of their own, which XLA neither inlines nor fuses with what is around.

A convolution's weights that autocast converts at each call: XLA:CPU converts by loops along the
innermost dimension, of which these have one or three elements, and takes two to three times as long
as the memory does. It moves a reshape out of the way, or fuses it; a function converts rows.

An update of a part of an array that is read after that, as a cache of keys and values: XLA fuses it
with a reshape of its reader, and does it again for the result, each time on copies. The result of a
function is there once, and in place where the array is donated.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.target import Target

Value: TypeAlias = ir.Value
# Arrays of fewer elements are left alone, and so are weights with as many in the last dimension.
FEWEST, _ENOUGH = 1 << 14, 16


def outline(module: ir.Module, target: Target) -> None:
    """Give functions of their own to the operations of a module's `main` that are to have one."""
    main = main_of(module)
    for op in [op.operation for op in main.entry_block.operations]:
        if op.name == "stablehlo.convert" and _is_of_a_weight(op):
            make = _converted_rows
        elif op.name == "stablehlo.dynamic_update_slice" and _is_read_too(op):
            make = _updated
        else:
            continue
        with ir.InsertionPoint(op), op.location:
            op.results[0].replace_all_uses_with(make(module, op))
        op.erase()


def _is_of_a_weight(op: ir.Operation) -> bool:
    (x,), (result,) = op.operands, op.results
    shape = build.shape_of(x)
    if len(shape) < 3 or shape[-1] >= _ENOUGH or build.product(shape) < FEWEST:
        return False
    users = {use.owner.name for use in result.uses}
    return isinstance(x.owner, ir.Block) and users == {"stablehlo.custom_call"}


def _converted_rows(module: ir.Module, op: ir.Operation) -> Value:
    (x,), (result,) = op.operands, op.results
    shape = build.shape_of(x)
    rows = [shape[0], build.product(shape[1:])]
    given, type_ = (ir.RankedTensorType.get(rows, v.type.element_type) for v in (x, result))
    return hlo.reshape(result.type, _call(module, op, [hlo.reshape(given, x)], type_))


def _is_read_too(op: ir.Operation) -> bool:
    """Whether an update of a small part has several readers, or the result and a reader."""
    whole, part = (build.product(build.shape_of(x)) for x in list(op.operands)[:2])
    return whole >= FEWEST and 4 * part <= whole and len(list(op.results[0].uses)) > 1


def _updated(module: ir.Module, op: ir.Operation) -> Value:
    return _call(module, op, list(op.operands), op.results[0].type)


def _call(module: ir.Module, op: ir.Operation, operands: Sequence[Value], type_: ir.Type) -> Value:
    """What an operation makes of these operands, by a call of a function that does it."""

    def body(*arguments: Value) -> Value:
        copy = op.clone().operation
        for index, argument in enumerate(arguments):
            copy.operands[index] = argument
        copy.results[0].set_type(type_)
        return copy.results[0]

    return called(module, op.name.split(".")[-1], operands, type_, body)


def called(
    module: ir.Module,
    name: str,
    operands: Sequence[Value],
    type_: ir.Type,
    body: Callable[..., Value],
) -> Value:
    """The result of a new function of a module, called here with these operands.

    Args:
        module: where the function goes.
        name: its name, or the beginning of it.
        operands: what it is called with.
        type_: of its result.
        body: makes its result of its arguments.
    """
    with ir.InsertionPoint(module.body):
        given = [operand.type for operand in operands]
        function = func.FuncOp(name, (given, [type_]), visibility="private")
        ir.SymbolTable(module.operation).insert(function)  # which finds another name if it must
        with ir.InsertionPoint(function.add_entry_block()):
            func.ReturnOp([body(*function.arguments)])
    call = func.CallOp(function, operands)
    inlineable = {"inlineable": ir.StringAttr.get("false")}
    call.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(inlineable)
    return call.results[0]
