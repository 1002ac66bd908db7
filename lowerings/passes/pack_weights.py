"""Calls of kernels that run as plans: a program has their handles, and may have packed weights.

`freeze` moves what depends on parameters alone out of a program. Where all that a call reads beside
its first operand is such a value, it gets a handle of a `PackedKernel` instead, which is made when
the parameters have changed (`frozen_inputs`). Other calls get handles too, if the kernel reads
plain operands: these are made once. Until `call_packed` has written the calls, they are custom
calls of `PACKED`, on an array of handles and the operands that remain.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.functions import operations_of, update_type
from xla_dynamo.lowerings.builders.operation_names import call_target
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import KERNELS, PackedKernel, kernel_of
from xla_dynamo.lowerings.target import Target

PACKED = "xla_dynamo.packed"


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A kernel that a program executes by a handle.

    Attributes:
        keys: the keys of the frozen values that it reads: its weight, and its bias if it has one
            (see `freeze.Cut`). There are none if all its operands come with a call.
        form: what it computes.
    """

    keys: tuple[str, ...]
    form: PackedKernel


def packed_form(op: ir.Operation) -> PackedKernel | None:
    """What a call computes that a kernel with packed weights may take the place of; else None."""
    kernel = kernel_of(op)
    if kernel is None:
        return None
    packed = (k for k in KERNELS.values() if issubclass(k, PackedKernel))
    forms = (k.of_call(op) for k in packed if k.replaces == kernel.name)
    return next((form for form in forms if form is not None), None)


def is_packable(op: ir.Operation) -> bool:
    """Whether an operation has a `packed_form`."""
    return packed_form(op) is not None


class PlannedCall(NamedTuple):
    """A call that is to read a handle.

    Attributes:
        op: the call.
        form: what it computes.
        keys: those of the frozen values in its operands but the first one; none if they stay.
    """

    op: ir.Operation
    form: PackedKernel
    keys: tuple[str, ...] = ()


def plain_calls(operations: Iterable[ir.Operation], target: Target) -> list[PlannedCall]:
    """The calls among some operations whose kernels read plain operands."""
    known, pairs = target.libraries, [(op, packed_form(op)) for op in operations]
    found = ((op, form) for op, form in pairs if form and form.reads_plain in known)
    calls = (call for op, form in found if form.plans for call in form.calls_of(op))
    return [PlannedCall(op, form) for op, form in calls]


def plan_calls(main: func.FuncOp, target: Target) -> list[Packed]:
    """Let each call of a function read a handle whose kernel reads plain operands."""
    packed = give_handles(main, plain_calls(operations_of(main), target))
    update_type(main)
    return packed


def give_handles(main: func.FuncOp, calls: Sequence[PlannedCall]) -> list[Packed]:
    """Give a function an array of handles of some calls, if any, and these their numbers."""
    if calls:
        type_ = tensor_type([len(calls)], torch.int64)
        handles = main.entry_block.add_argument(type_, ir.Location.unknown())
    for number, call in enumerate(calls):
        _pack(call, handles, number)
    return [Packed(call.keys, call.form) for call in calls]


def _pack(call: PlannedCall, handles: Value, number: int) -> None:
    """Let a call read a handle, by this number, and the operands that are not frozen."""
    op, form = call.op, call.form
    operands = list(op.operands)[:1] if call.keys else list(op.operands)
    text = ir.StringAttr.get(f"{form.name}:{form.text()}")
    count = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    with ir.InsertionPoint(op), op.location:
        new = hlo.CustomCallOp(
            [result.type for result in op.results],
            [handles, *operands],
            PACKED,
            backend_config=ir.DictAttr.get({"kernel": text, "number": count}),
            api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
        )
    for result, other in zip(op.results, new.results, strict=True):
        result.replace_all_uses_with(other)
    op.erase()


def is_packed(op: ir.Operation) -> bool:
    """Whether an operation is a call that `pack` has written."""
    return call_target(op) == PACKED


def read_packed(op: ir.Operation) -> tuple[int, PackedKernel]:
    """The number and the form that `pack` has written."""
    config = ir.DictAttr(op.attributes["backend_config"])
    name, _, text = ir.StringAttr(config["kernel"]).value.partition(":")
    kernel = KERNELS[name]
    assert issubclass(kernel, PackedKernel)
    return ir.IntegerAttr(config["number"]).value, kernel.read(text)
