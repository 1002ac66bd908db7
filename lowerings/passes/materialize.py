"""Materialize values that several fusions, or several elements of one, would otherwise recompute.

XLA:CPU recomputes an operation in each user that it can be fused with, and the user in each of its
own users. So along the residual sums of a model, or along their gradients, the last fusion reads
all arrays that there were before. And each step of a stencil, which reads a value at several
indices, recomputes the step before at every neighbour.

The pass passes such a value through a function that returns its argument and that XLA is told not
to inline: nothing is copied, and nothing is fused across it.
"""

from collections.abc import Iterable

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.cpu_thresholds import FEW_ELEMENTS as FEW
from xla_dynamo.lowerings.builders.cpu_thresholds import (
    MOST_ARRAYS,
    MOST_ARRAYS_OF_FEW,
    MOST_OPERATIONS_IN_A_ROW,
    MOST_RECOMPUTED_OPERATIONS,
)
from xla_dynamo.lowerings.builders.functions import main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import named
from xla_dynamo.lowerings.builders.values import Value, defining_name, numel_of
from xla_dynamo.lowerings.passes.fusions import FUSIBLE, SHIFTING, find_recomputed
from xla_dynamo.lowerings.passes.outline import call_outlined
from xla_dynamo.lowerings.target import Target

# Operations whose result costs nothing to read.
_FREE = named("constant iota")


def materialize(module: ir.Module, target: Target) -> None:
    """Materialize what would be recomputed from several arrays, or by much work.

    Assumes nothing of the module. Leaves alone what is nested in regions, and the functions beside
    `main`.
    """
    ops = operations_of(main_of(module))
    in_several_kernels, at_several_indices = find_recomputed(ops)
    costs = _Costs()
    for op in ops:
        if op.name not in FUSIBLE:
            continue
        (result,) = op.results
        reads_many, works_much = costs.reads_many(op), costs.works_much(op)
        is_deep = costs.is_deep(op)
        if ((reads_many or is_deep) and result in in_several_kernels) or (
            works_much and result in at_several_indices
        ):
            with ir.InsertionPoint.after(op), op.location:
                once = call_outlined(module, "once", [result], result.type, lambda x: x)
            result.replace_all_uses_except(once, once.owner.operation)
            costs.add_array(once)


class _Costs:
    """What it costs to recompute values, for operations that are asked about in their order."""

    def __init__(self) -> None:
        # By a fused value, the largest arrays that it is computed from, with their sizes.
        self._arrays: dict[Value, dict[Value, int]] = {}
        # By a fused value, the values that are computed for one element of it at its index, with
        # the number of operations that each takes.
        self._work: dict[Value, dict[Value, int]] = {}
        # By a fused value, the operations on the longest way to it from an array.
        self._depth: dict[Value, int] = {}

    def add_array(self, value: Value) -> None:
        """Take a value as an array in memory from now on."""
        self._arrays[value] = {value: numel_of(value)}
        self._depth[value] = 0

    def is_deep(self, op: ir.Operation) -> bool:
        """Whether a fusible operation's result is the end of too long a chain of operations.

        Along a chain each of whose steps is reduced, as of normalizations, each reduction would
        compute all steps before it, of however few arrays: time and code grow with the square.
        """
        depth = 1 + max((self._depth.get(x, 0) for x in op.operands), default=0)
        self._depth[op.results[0]] = depth
        return depth > MOST_OPERATIONS_IN_A_ROW

    def reads_many(self, op: ir.Operation) -> bool:
        """Whether a fusible operation's result is computed from too many arrays of its size."""
        (result,) = op.results
        size = numel_of(result)
        known = self._arrays
        read = _union(known[x] if x in known else _array(x, numel_of(x)) for x in op.operands)
        read = {v: n for v, n in read.items() if 2 * n >= size}
        largest = sorted(read, key=read.__getitem__, reverse=True)[: MOST_ARRAYS_OF_FEW + 1]
        self._arrays[result] = {v: read[v] for v in largest}
        return len(read) > (MOST_ARRAYS if size >= FEW else MOST_ARRAYS_OF_FEW)

    def works_much(self, op: ir.Operation) -> bool:
        """Whether an element of a fusible operation's result takes too many operations."""
        (result,) = op.results
        known = self._work
        work = [known[x] if x in known else _array(x, 1) for x in op.operands]
        if op.name in SHIFTING:  # what it reads is computed at other indices, apart
            effort = {result: sum(sum(each.values()) for each in work) + 1}
        else:
            effort = _union(work)
            effort |= {result: 1} if effort else {}
        is_much = sum(effort.values()) > MOST_RECOMPUTED_OPERATIONS
        self._work[result] = {result: MOST_RECOMPUTED_OPERATIONS + 1} if is_much else effort
        return is_much


def _array(value: Value, cost: int) -> dict[Value, int]:
    """A value that no fusible operation computes, with its cost; nothing where it has none."""
    return {} if defining_name(value) in _FREE else {value: cost}


def _union(costs: Iterable[dict[Value, int]]) -> dict[Value, int]:
    return {value: n for each in costs for value, n in each.items()}
