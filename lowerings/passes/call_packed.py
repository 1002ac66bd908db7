"""Write the calls of convolutions with packed weights, with what follows them inside.

torch's operator (aten/src/ATen/native/mkldnn/Conv.cpp) makes a tensor of its own, which is copied
to the program's memory; a value is added there by oneDNN. The activation is torch's, in place, and
not one of those that oneDNN has inside its convolutions (its post-ops), whose relu of NaN is 0.
"""

import json
from typing import Any, NamedTuple

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.builders.call_scripts import (
    FIRST_TENSOR,
    NULL,
    Argument,
    Script,
    element,
    number,
    place_of_element,
    place_of_slot,
    slot,
)
from xla_dynamo.lowerings.builders.functions import has_uses, main_of, operations_of
from xla_dynamo.lowerings.builders.strides import row_major
from xla_dynamo.lowerings.builders.values import Value, defining_name, shape_of
from xla_dynamo.lowerings.passes.pack_weights import PACKED
from xla_dynamo.lowerings.target import Target

_FLOAT32 = 6  # as the C functions number dtypes
# Tensors of a script, by slots.
_IMAGE, _RESULT, _MADE, _ADDED = range(FIRST_TENSOR, FIRST_TENSOR + 4)


class _Epilogue(NamedTuple):
    """What follows a convolution.

    Attributes:
        result: the value that takes its place.
        added: what is added to the convolution; None for nothing.
        activation: the name of the function of the sum, as ATen has it; "none" for none.
    """

    result: Value
    added: Value | None = None
    activation: str = "none"


def call_packed(module: ir.Module, target: Target) -> None:
    """Write each convolution with a packed weight, and what follows it, as one call of torch.

    Assumes that `put_channels_last` has brought what follows next to the convolutions.
    """
    main = main_of(module)
    calls = [op for op in operations_of(main) if _is_packed(op)]
    for op in calls:
        _write(op)
    if calls:
        _erase_unused(main)


def _is_packed(op: ir.Operation) -> bool:
    if op.name != "stablehlo.custom_call":
        return False
    return ir.StringAttr(op.attributes["call_target_name"]).value == PACKED


def _write(op: ir.Operation) -> None:
    """Replace a convolution and its epilogue by the call."""
    epilogue = _relu(_sum(_Epilogue(op.results[0])))
    config = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
    handles, x = op.operands
    last = epilogue.result.owner
    operands = [handles, x]
    if epilogue.added is not None:
        operands.append(epilogue.added)
    script = _script(config, operands, epilogue)
    with ir.InsertionPoint(last), op.location:
        new = script.operation(operands, [op.results[0].type])
    epilogue.result.replace_all_uses_with(new.results[0])


# --- what follows --------------------------------------------------------------------------------


def _sum(found: _Epilogue) -> _Epilogue:
    """With a value of the same type that is added to the result and to nothing else of it."""
    users = _users(found.result)
    if len(users) != 1 or users[0].name != "stablehlo.add":
        return found
    (add,) = users
    others = [v for v in add.operands if v != found.result]
    if len(others) != 1 or _is_spread(others[0]):
        return found
    return found._replace(result=add.results[0], added=others[0])


def _relu(found: _Epilogue) -> _Epilogue:
    """With select(x <= 0, 0, x), as rules write it for the CPU."""
    users = _users(found.result)
    if len(users) != 2:
        return found
    compare, select = sorted(users, key=lambda user: user.name)
    if (compare.name, select.name) != ("stablehlo.compare", "stablehlo.select"):
        return found
    x, zero = compare.operands
    direction = str(compare.attributes["comparison_direction"])
    if x != found.result or "LE" not in direction or not _is_zero(zero):
        return found
    where, below, above = select.operands
    if where != compare.results[0] or above != found.result or not _is_zero(below):
        return found
    return found._replace(result=select.results[0], activation="relu")


def _users(x: Value) -> list[ir.Operation]:
    return [use.owner.operation for use in x.uses]


def _is_spread(x: Value) -> bool:
    """Whether a value is a smaller one, which an operation reads without its being written."""
    if defining_name(x) == "stablehlo.transpose":
        return _is_spread(x.owner.operands[0])
    return defining_name(x) in ("stablehlo.broadcast_in_dim", "stablehlo.constant")


def _is_zero(x: Value) -> bool:
    """Whether all elements of a value are the constant 0."""
    while defining_name(x) in ("stablehlo.broadcast_in_dim", "stablehlo.transpose"):
        x = x.owner.operands[0]
    if defining_name(x) != "stablehlo.constant":
        return False
    value = ir.DenseElementsAttr(x.owner.attributes["value"])
    return value.is_splat and float(ir.FloatAttr(value.get_splat_value()).value) == 0.0


# --- the call ------------------------------------------------------------------------------------


def _script(config: dict[str, Any], operands: list[Value], epilogue: _Epilogue) -> Script:
    """The calls of a convolution: tensors over the memory of operands and result, and the rest."""
    script = Script()
    _tensor(script, slot(1), operands[1], _IMAGE)
    _tensor(script, slot(len(operands)), epilogue.result, _RESULT)
    weight, *bias = config["handles"]
    given = [element(weight), place_of_element(bias[0]) if bias else NULL]
    for name in ("padding", "stride", "dilation"):
        given += [script.array(config[name]), number(len(config[name]))]
    given.append(number(config["groups"]))
    if epilogue.added is None:
        _to_result(script, given, epilogue.activation)
    else:
        _tensor(script, slot(2), operands[2], _ADDED)
        _onto_sum(script, given, epilogue.activation)
    script.delete(_IMAGE, _RESULT, _MADE)
    return script


def _to_result(script: Script, given: list[Argument], activation: str) -> None:
    """The convolution makes a tensor, which is copied to the result and activated there."""
    nothing = [script.text("none"), NULL, number(0), NULL]
    name = "aoti_torch_cpu_mkldnn__convolution_pointwise"
    script.call(name, slot(_IMAGE), *given, *nothing, place_of_slot(_MADE))
    script.call("aoti_torch_copy_", slot(_RESULT), slot(_MADE), number(0))
    _activate(script, activation)


def _onto_sum(script: Script, given: list[Argument], activation: str) -> None:
    """The added value is copied to the result; the convolution is added, and activated, there."""
    script.call("aoti_torch_copy_", slot(_RESULT), slot(_ADDED), number(0))
    script.call(
        "aoti_torch_cpu_mkldnn__convolution_pointwise_binary_",
        slot(_RESULT),
        slot(_IMAGE),
        *given,
        script.text("add"),
        *[NULL] * 3,
        number(0),
        NULL,
        place_of_slot(_MADE),
    )
    _activate(script, activation)
    script.delete(_ADDED)


def _activate(script: Script, activation: str) -> None:
    if activation != "none":
        script.operator(f"aten::{activation}_", "", _RESULT)


def _tensor(script: Script, address: Argument, value: Value, place: int) -> None:
    """Make a tensor [batch, channels, *spatial] of a value [batch, *spatial, channels]."""
    shape = shape_of(value)
    strides = row_major(shape)
    order = [0, len(shape) - 1, *range(1, len(shape) - 1)]
    script.call(
        "aoti_torch_create_tensor_from_blob_v2",
        address,
        number(len(shape)),
        script.array([shape[d] for d in order]),
        script.array([strides[d] for d in order]),
        number(0),
        number(_FLOAT32),
        number(0),  # the device: the CPU
        number(-1),
        place_of_slot(place),
        number(0),  # the layout: strided
        NULL,
        number(0),
    )


def _erase_unused(main: func.FuncOp) -> None:
    """Erase the operations that the calls have replaced."""
    for op in reversed(operations_of(main)):
        replaced = _is_packed(op) or op.name in (
            "stablehlo.add",
            "stablehlo.compare",
            "stablehlo.select",
        )
        if replaced and not has_uses(op):
            op.erase()
