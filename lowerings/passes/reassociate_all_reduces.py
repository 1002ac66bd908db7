"""Add values before they are reduced over devices, not behind: one exchange for two.

The gradient of attention's input is the sum of three products, of whose parts each device has one.
A partitioner reduces each product, and adds the results.
"""

from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.functions import main_of, operations_of
from xla_dynamo.lowerings.builders.values import Value, defining_operation
from xla_dynamo.lowerings.target import Target


def reassociate_all_reduces(module: ir.Module, target: Target) -> None:
    """Let the sum of two all-reduced sums be the all-reduced sum of both.

    Assumes that collectives of `main` are of processes. Leaves all-reduces that something else
    reads too, and those of other groups.
    """
    if not target.replicas:
        return
    for op in operations_of(main_of(module)):
        if op.name == "stablehlo.add":
            _reassociate(op)


def _reassociate(op: Any) -> None:
    pair = [defining_operation(x) for x in op.operands]
    first, second = pair
    if first is None or second is None or first == second or not all(map(_is_sum, pair)):
        return
    if first.attributes["replica_groups"] != second.attributes["replica_groups"]:
        return
    with ir.InsertionPoint(op), op.location:
        total = hlo.add(first.operands[0], second.operands[0])
        reduced = first.clone()
        reduced.operands[0] = total
    op.results[0].replace_all_uses_with(reduced.results[0])
    for unused in (op, first, second):
        unused.erase()


def _is_sum(op: Any) -> bool:
    """Whether an operation is an all-reduce that sums one value, for one reader."""
    if op.name != "stablehlo.all_reduce" or len(op.operands) != 1:
        return False
    result: Value = op.results[0]
    names = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    return len(list(result.uses)) == 1 and names[:-1] == ["stablehlo.add"]
