"""Calls of kernels whose weights are packed: they get them in a layout of their own, and once.

`freeze` moves what depends on parameters alone out of a program. Where all that a call reads beside
its first operand is such a value, it gets a handle of a `PackedKernel` instead (`pack`), which is
made when the parameters have changed (`frozen_inputs`). Until `call_packed` has written the calls,
they are custom calls of `PACKED`, on an array of handles and the first operand.
"""

import dataclasses

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.kernels import KERNELS, PackedKernel, kernel_of

PACKED = "xla_dynamo.packed"


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A kernel that a program executes by a handle.

    Attributes:
        keys: the keys of the frozen values that it reads: its weight, and its bias if it has one
            (see `freeze.Cut`).
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


def pack(op: ir.Operation, form: PackedKernel, handles: Value, number: int) -> None:
    """Let a packable call read a handle, by this number, and its first operand."""
    text = ir.StringAttr.get(f"{form.name}:{form.text()}")
    count = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    with ir.InsertionPoint(op), op.location:
        new = hlo.CustomCallOp(
            [op.results[0].type],
            [handles, op.operands[0]],
            PACKED,
            backend_config=ir.DictAttr.get({"kernel": text, "number": count}),
            api_version=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4),
        )
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()


def is_packed(op: ir.Operation) -> bool:
    """Whether an operation is a call that `pack` has written."""
    if op.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(op.attributes["call_target_name"]).value == PACKED


def read_packed(op: ir.Operation) -> tuple[int, PackedKernel]:
    """The number and the form that `pack` has written."""
    config = ir.DictAttr(op.attributes["backend_config"])
    name, _, text = ir.StringAttr(config["kernel"]).value.partition(":")
    kernel = KERNELS[name]
    assert issubclass(kernel, PackedKernel)
    return ir.IntegerAttr(config["number"]).value, kernel.read(text)
