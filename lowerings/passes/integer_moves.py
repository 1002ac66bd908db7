"""Move elements of bfloat16 as integers of 16 bits, where XLA:CPU would convert them twice.

XLA:CPU computes with bfloat16 in float32, and converts to it and back what an operation only moves:
it concatenates arrays of float32, and updates a cache of keys and values by writing all of it anew,
though it may write in place. Integers of the same bits are moved as they are: a concatenation takes
a fifth of the time, and an update in place what the update alone takes.
"""

from collections.abc import Sequence

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.operation_names import named
from xla_dynamo.lowerings.builders.values import Value, defining_name, dtype_of, shape_of
from xla_dynamo.lowerings.kernels import is_plan
from xla_dynamo.lowerings.passes.permuted_operations import clone_with
from xla_dynamo.lowerings.target import Target

BITS = torch.int16
# How many of an operation's operands are arrays that are moved: the first ones.
_MOVED = {"stablehlo.concatenate": None, "stablehlo.dynamic_update_slice": 2}
# What XLA moves well enough, but of bits without making their numbers of all of them first.
_READING = named("broadcast_in_dim dynamic_slice gather reshape reverse slice transpose")


def move_as_integers(module: ir.Module, target: Target) -> None:
    """Move bfloat16 as integers in concatenations, updates of a part, and scatters that replace.

    Also those that are nested in regions. What is moved by several operations one after another
    stays integers between them, and so does what calls of plans read, which take it as it lies in
    memory.
    """
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if _moves_halves(op):
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    for op in found:
        if op.name == "stablehlo.custom_call":
            _let_plan_read_bits(op)
            continue
        if op.name in _READING and _bits_of(op.operands[0]) is None:
            continue
        with ir.InsertionPoint(op), op.location:
            (result,) = op.results
            moved = _scattered(op) if op.name == "stablehlo.scatter" else _moved(op)
            _replace(result, moved)
        op.erase()


def as_bits(x: Value) -> Value:
    """The bits of a value of bfloat16: what it was made of, if that is bits."""
    known = _bits_of(x)
    return build.bitcast(x, BITS) if known is None else known


def _bits_of(x: Value) -> Value | None:
    if defining_name(x) != "stablehlo.bitcast_convert":
        return None
    source = x.owner.operands[0]
    return source if dtype_of(source) is BITS else None


def _let_plan_read_bits(op: ir.Operation) -> None:
    for index, x in enumerate(op.operands):
        known = _bits_of(x)
        if known is not None:
            op.operands[index] = known


def _moves_halves(op: ir.Operation) -> bool:
    if op.name == "stablehlo.custom_call":
        return is_plan(op)
    if op.name not in (*_MOVED, *_READING, "stablehlo.scatter") or len(op.results) != 1:
        return False
    if dtype_of(op.results[0]) is not torch.bfloat16:
        return False
    return op.name != "stablehlo.scatter" or _takes_updates(op)


def _takes_updates(op: ir.Operation) -> bool:
    """Whether a scatter replaces elements by its updates."""
    block = op.regions[0].blocks[0]
    last = list(block.operations)[-1]
    return list(last.operands) == [block.arguments[1]]


def _moved(op: ir.Operation) -> Value:
    operands: Sequence[Value] = list(op.operands)
    count = _MOVED.get(op.name, 1) or len(operands)
    given = [as_bits(x) for x in operands[:count]]
    type_ = tensor_type(list(shape_of(op.results[0])), BITS)
    return clone_with(op, [*given, *operands[count:]], [type_], {}).results[0]


def _scattered(op: ir.Operation) -> Value:
    x, indices, updates = op.operands
    given = as_bits(x), as_bits(updates)
    numbers = hlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    made = hlo.ScatterOp([given[0].type], [given[0]], indices, [given[1]], numbers)
    build.region(made.regions[0], [tensor_type((), BITS)] * 2, lambda old, new: new)
    for name in op.attributes:
        made.operation.attributes[name] = op.attributes[name]
    return made.results[0]


def _replace(old: Value, bits: Value) -> None:
    """Let what reads a value, or its bits, read these bits."""
    for use in list(old.uses):
        reader = use.owner.operation
        if reader.name == "stablehlo.bitcast_convert" and dtype_of(reader.results[0]) is BITS:
            reader.results[0].replace_all_uses_with(bits)
            reader.erase()
    if next(iter(old.uses), None) is not None:
        old.replace_all_uses_with(build.bitcast(bits, torch.bfloat16))
