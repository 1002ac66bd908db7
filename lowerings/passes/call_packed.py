"""Write the calls of kernels with packed weights, with what follows them inside.

A handle of each kernel is in an array that the program reads. A call has the number of its handle
for an attribute. The notes of the pass say what it computes.
"""

import dataclasses
from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.builders.functions import has_uses, main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import PackedKernel
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.passes.pack_weights import Packed, is_packed, read_packed
from xla_dynamo.lowerings.target import Target


def call_packed(module: ir.Module, target: Target) -> Notes | None:
    """Write each kernel with packed weights, and what follows it, as one call.

    Assumes that `put_channels_last` has brought what follows next to the calls; what it has not
    brought there stays outside of them.

    Returns:
        The form of each call, by the number of its handle.
    """
    main = main_of(module)
    calls = [op for op in operations_of(main) if is_packed(op)]
    if not calls:
        return None
    forms = dict(_write(op) for op in calls)
    _erase_unused(main)
    return Notes(forms=tuple(forms[number] for number in range(len(calls))))


def with_forms(packed: Sequence[Packed], notes: Notes) -> tuple[Packed, ...]:
    """What a module executes by handles, with the forms that the notes of `call_packed` have."""
    pairs = zip(packed, notes.forms, strict=True)
    return tuple(dataclasses.replace(one, form=form) for one, form in pairs)


def _write(op: ir.Operation) -> tuple[int, PackedKernel]:
    """Replace a call and what it absorbs by a call of its handle; returns its number and form."""
    number, form = read_packed(op)
    results, last = list(op.results), op
    more: Sequence[Value] = ()
    if len(results) == 1:
        result, more, form = form.absorb(results[0])
        results, last = [result], result.owner
    with ir.InsertionPoint(last), op.location:
        made = form.emit_handle(number, [*op.operands, *more], [r.type for r in results])
        name = ir.DictAttr.get({"kernel": ir.StringAttr.get(form.name)})
        made[0].owner.attributes["mhlo.frontend_attributes"] = name  # for profiles
    for result, new in zip(results, made, strict=True):
        result.replace_all_uses_with(new)
    return number, form


def _erase_unused(main: func.FuncOp) -> None:
    """Erase the operations that the calls have replaced."""
    for op in reversed(operations_of(main)):
        replaced = is_packed(op) or op.name in ELEMENTWISE or op.name == "stablehlo.reshape"
        if replaced and not has_uses(op):
            op.erase()
