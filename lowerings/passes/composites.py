"""Put the operations between the marks of a named region into a composite of StableHLO.

`stablehlo.composite "name"` has the operations in a function of their own, its decomposition: who
knows the name may do the work in another way, and XLA inlines the function.
"""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.lowerings.builders.functions import (
    has_uses,
    main_of,
    operations_of,
    rebind,
    update_type,
    values_read,
)
from xla_dynamo.lowerings.builders.operation_names import call_target, named
from xla_dynamo.lowerings.builders.values import Value, defining_operation

# The call that stands for a mark until `outline_composites` runs.
MARK = "xla_dynamo.mark_tensor"


def mark(x: Value, name: str, pos: int, id: str, is_input: bool, attr: str | None = None) -> Value:
    """The call that marks x as an input or an output, by its position, of a region."""
    given = {"name": name, "pos": pos, "id": id, "is_input": is_input, "attr": attr or ""}
    text = ir.StringAttr.get(json.dumps(given))
    return hlo.CustomCallOp([x.type], [x], MARK, backend_config=text).results[0]


_CONSTANTS = named("constant iota")


@dataclasses.dataclass(slots=True)
class _Region:
    """The marks of a region.

    Attributes:
        name: of the composite.
        attributes: of the composite, as JSON; or "".
        inputs, outputs: the marks by position.
    """

    name: str
    attributes: str
    inputs: dict[int, ir.Operation] = dataclasses.field(default_factory=dict)
    outputs: dict[int, ir.Operation] = dataclasses.field(default_factory=dict)


def outline_composites(module: ir.Module) -> None:
    """Replace all marks of `main` by composites; a region inside another one comes first.

    A value from outside of a region that no mark tells, as a weight, is an operand of the composite
    behind the marked ones; constants are inside.

    Raises:
        UnsupportedError: a region has marked inputs and no marked output, or its outputs are used
            before it ends.
    """
    main = main_of(module)
    for region in _regions(main):
        _outline(main, region)
    for op in operations_of(main):
        if _is_mark(op):
            _remove(op)


def _is_mark(op: ir.Operation) -> bool:
    return call_target(op) == MARK


def _regions(main: func.FuncOp) -> list[_Region]:
    """The regions, in the order in which they end."""
    found: dict[str, _Region] = {}
    ended: dict[str, None] = {}
    for op in operations_of(main):
        if _is_mark(op):
            given = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
            region = found.setdefault(given["id"], _Region(given["name"], ""))
            region.attributes = region.attributes or given["attr"]
            marks = region.inputs if given["is_input"] else region.outputs
            marks[given["pos"]] = op
            if not given["is_input"]:
                ended[given["id"]] = None
    if unfinished := [r.name for key, r in found.items() if key not in ended]:
        raise UnsupportedError(
            f"the region {unfinished[0]!r} has marked inputs, and no marked output is used: call "
            "mark_outputs on its results, and use what that returns"
        )
    return [found[key] for key in ended]


def _outline(main: func.FuncOp, region: _Region) -> None:
    inputs = [region.inputs[pos] for pos in sorted(region.inputs)]
    outputs = [region.outputs[pos] for pos in sorted(region.outputs)]
    order = {op: number for number, op in enumerate(operations_of(main))}
    inside = _inside(inputs, outputs, order)
    first_output = min(order[op] for op in outputs)
    late = [op for op in inside if order[op] > first_output]
    if late:
        raise UnsupportedError(
            f"an output of the region {region.name!r} is used before all are marked: mark them by "
            f"one call of mark_outputs ({late[0].location})"
        )
    inner = {result for op in inside for result in op.results}
    marked = [op.results[0] for op in inputs]
    read = dict.fromkeys(v for op in inside for v in values_read(op))
    read |= dict.fromkeys(op.operands[0] for op in outputs)
    captured = [v for v in read if v not in inner and v not in marked]
    operands = [op.operands[0] for op in inputs] + captured
    results = [op.operands[0] for op in outputs]
    name = _decomposition(main, region.name, [*marked, *captured], inside, results)
    first = next(op for op in outputs if order[op] == first_output)
    with ir.InsertionPoint(first), first.location:
        composite = hlo.CompositeOp(
            [v.type for v in results],
            operands,
            region.name,
            ir.FlatSymbolRefAttr.get(name),
            composite_attributes=_attributes(region.attributes),
        )
    for op, result in zip(outputs, composite.results, strict=True):
        op.results[0].replace_all_uses_with(result)
        op.erase()
    for op in reversed(inside):
        if not has_uses(op):
            op.erase()
    for op in inputs:
        _remove(op)


def _inside(
    inputs: Sequence[ir.Operation], outputs: Sequence[ir.Operation], order: dict[ir.Operation, int]
) -> list[ir.Operation]:
    """The operations from the marked inputs to the marked outputs, and constants they read."""
    ends = set(inputs)
    behind: set[ir.Operation] = set()
    waiting = [defining_operation(op.operands[0]) for op in outputs]
    while waiting:
        op = waiting.pop()
        if op is not None and op not in ends and op not in behind:
            behind.add(op)
            waiting += [defining_operation(v) for v in values_read(op)]
    reached = {op.results[0] for op in inputs}
    found: set[ir.Operation] = set()
    ordered = sorted(behind, key=order.__getitem__)
    for op in ordered:
        if any(v in reached for v in values_read(op)):
            found.add(op)
            reached |= set(op.results)
    # And what is there for the region alone, such as a weight's broadcast; constants are cheap.
    for op in reversed(ordered):
        users = [use.owner.operation for result in op.results for use in result.uses]
        if op.name in _CONSTANTS or all(_outermost(u) in found for u in users):
            found.add(op)
    return [op for op in ordered if op in found]


def _outermost(op: ir.Operation) -> ir.Operation:
    """The operation of the function's body that is op, or has op in a region."""
    while op.parent is not None and op.parent.name != "func.func":
        op = op.parent
    return op


def _decomposition(
    main: func.FuncOp,
    name: str,
    arguments: Sequence[Value],
    inside: Sequence[ir.Operation],
    results: Sequence[Value],
) -> str:
    """Add the function that has the operations of a region; returns its name."""
    module = main.operation.parent
    names = {
        ir.StringAttr(op.attributes["sym_name"]).value
        for op in module.regions[0].blocks[0].operations
    }
    numbered = (f"{name}.impl_{i}" for i in itertools.count())
    candidates = itertools.chain([f"{name}.impl"], numbered)
    chosen = next(n for n in candidates if n not in names)
    with ir.InsertionPoint(module.regions[0].blocks[0]), ir.Location.unknown():
        function = func.FuncOp(chosen, ([a.type for a in arguments], []), visibility="private")
        block = function.add_entry_block()
    known: dict[Value, Value] = dict(zip(arguments, block.arguments, strict=True))
    with ir.InsertionPoint(block):
        for op in inside:
            copy = op.clone()
            rebind(copy, known)
            known.update(zip(op.results, copy.results, strict=True))
        func.ReturnOp([known[v] for v in results])
    update_type(function)
    return chosen


def _remove(op: ir.Operation) -> None:
    op.results[0].replace_all_uses_with(op.operands[0])
    op.erase()


def _attributes(text: str) -> ir.DictAttr:
    given: dict[str, Any] = json.loads(text) if text else {}
    return ir.DictAttr.get({name: _attribute(value) for name, value in given.items()})


def _attribute(value: Any) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F32Type.get(), value)
    if isinstance(value, list):
        kind = next((k for k in (bool, float, int) if isinstance(value[0], k)), int)
        element = {
            bool: ir.IntegerType.get_signless(1),
            float: ir.F32Type.get(),
            int: ir.IntegerType.get_signless(64),
        }[kind]
        type_ = ir.RankedTensorType.get([len(value)], element)
        return ir.DenseElementsAttr.get([_attribute(one) for one in value], type_)
    return ir.StringAttr.get(str(value))
