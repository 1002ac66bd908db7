"""Add values before they are reduced over devices, not behind: one exchange for two.

The gradient of attention's input is the sum of three products, of whose parts each device has one.
A partitioner reduces each product, and adds the results.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.functions import main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import named
from xla_dynamo.lowerings.builders.reductions import reduction_of
from xla_dynamo.lowerings.builders.values import Value, defining_operation
from xla_dynamo.lowerings.target import Target

_VIEWS = named("reshape transpose")


def reassociate_all_reduces(module: ir.Module, target: Target) -> None:
    """Let the sum of two all-reduced sums be the all-reduced sum of both.

    Assumes that collectives of `main` are of replicas. Views between an all-reduce and the sum
    come in front of it. Leaves all-reduces that something else reads too, and those of other
    groups.
    """
    for op in operations_of(main_of(module)):
        if op.name == "stablehlo.add":
            _reassociate(op)


def _reassociate(op: Any) -> None:
    first, second = map(_reduced, op.operands)
    if first is None or second is None or op.operands[0] == op.operands[1]:
        return
    if first[0].attributes["replica_groups"] != second[0].attributes["replica_groups"]:
        return
    with ir.InsertionPoint(op), op.location:
        total = hlo.add(*(_viewed(sums.operands[0], views) for sums, views in (first, second)))
        reduced = first[0].clone()
    reduced.operands[0] = total
    reduced.results[0].set_type(total.type)
    op.results[0].replace_all_uses_with(reduced.results[0])
    op.erase()
    for sums, views in (first, second):
        for unused in (*reversed(views), sums):
            unused.erase()


def _reduced(x: Value) -> tuple[Any, list[Any]] | None:
    """The all-reduce that sums a value for one reader, and the views between the two."""
    views: list[Any] = []
    while len(list(x.uses)) == 1:
        op = defining_operation(x)
        if op is None:
            return None
        if op.name == "stablehlo.all_reduce":
            is_sum = len(op.operands) == 1 and reduction_of(op) == "stablehlo.add"
            return (op, views[::-1]) if is_sum else None
        if op.name not in _VIEWS:
            return None
        views.append(op)
        x = op.operands[0]
    return None


def _viewed(x: Value, views: Sequence[Any]) -> Value:
    for view in views:
        made = view.clone()
        made.operands[0] = x
        x = made.results[0]
    return x
