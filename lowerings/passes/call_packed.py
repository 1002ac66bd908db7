"""Write the calls of convolutions with packed weights, with what follows them inside.

`runtime.cpu.packed_weights` makes the convolutions; a handle of each is in an array that the
program reads. A call has the number of its handle for an attribute. The notes of the pass say what
it computes.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import row_major_layout
from xla_dynamo.lowerings.builders.functions import has_uses, main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE
from xla_dynamo.lowerings.builders.values import Value, shape_of
from xla_dynamo.lowerings.passes.epilogues import epilogue_of
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.pack_weights import PACKED, Packed
from xla_dynamo.lowerings.target import Target

# The handler's name, as `runtime.cpu.call_scripts` registers it.
TARGET = "xla_dynamo.script"
# So many operands and results has a call of it at most (`script_layout`).
MOST_ADDRESSES = 8


def call_packed(module: ir.Module, target: Target) -> Notes | None:
    """Write each convolution with a packed weight, and what follows it, as one call of oneDNN.

    Assumes that `put_channels_last` has brought what follows next to the convolutions; what it has
    not brought there stays outside of the calls.

    Returns:
        The form of each call, by the number of its handle.
    """
    main = main_of(module)
    calls = [op for op in operations_of(main) if _is_packed(op)]
    if not calls:
        return None
    forms = dict(_write(op) for op in calls)
    _erase_unused(main)
    return Notes(forms=tuple(forms[number] for number in range(len(calls))))


def with_forms(packed: Sequence[Packed], notes: Notes) -> tuple[Packed, ...]:
    """What a module executes by handles, with the forms that the notes of `call_packed` have."""
    pairs = zip(packed, notes.forms, strict=True)
    return tuple(dataclasses.replace(one, form=form) for one, form in pairs)


def _is_packed(op: ir.Operation) -> bool:
    if op.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(op.attributes["call_target_name"]).value == PACKED


def _write(op: ir.Operation) -> tuple[int, str]:
    """Replace a convolution and its epilogue by the call; returns its number and its form."""
    config = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
    epilogue = epilogue_of(op.results[0])
    operands = [*op.operands]
    if epilogue.added is not None:
        operands.append(epilogue.added)
    number = config.pop("number")
    form = json.dumps({**config, **_shapes(op), "then": epilogue.then})
    with ir.InsertionPoint(epilogue.result.owner), op.location:
        new = _call(number, operands, op.results[0].type)
    epilogue.result.replace_all_uses_with(new)
    return number, form


def _shapes(op: ir.Operation) -> dict[str, Any]:
    """The shapes of image and result, [batch, channel, *spatial]."""
    shapes = {}
    for name, value in (("image", op.operands[1]), ("result", op.results[0])):
        batch, *spatial, channels = shape_of(value)
        shapes[name] = [batch, channels, *spatial]
    return shapes


def _call(number: int, operands: Sequence[Value], type_: ir.Type) -> Value:
    """The call of a handle, on operands and with a result that are row-major.

    Raises:
        ValueError: there are more operands than the handler takes.
    """
    if len(operands) + 1 > MOST_ADDRESSES:
        raise ValueError(f"a call has more than {MOST_ADDRESSES} operands and results")
    script = ir.DenseI64ArrayAttr.get([number])
    new = hlo.CustomCallOp(
        [type_],
        list(operands),
        TARGET,
        backend_config=ir.DictAttr.get({"script": script}),
        operand_layouts=ir.ArrayAttr.get([row_major_layout(x.type) for x in operands]),
        result_layouts=ir.ArrayAttr.get([row_major_layout(type_)]),
        api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
    )
    return new.results[0]


def _erase_unused(main: func.FuncOp) -> None:
    """Erase the operations that the calls have replaced."""
    for op in reversed(operations_of(main)):
        replaced = _is_packed(op) or op.name in ELEMENTWISE
        if replaced and not has_uses(op):
            op.erase()
