"""Values that several read, and that are made of several arrays, are made once.

XLA:CPU computes an operation element by element anew in each reader that it can be fused with, and
the reader in each of its own. So along the residual sums of a model, or along their gradients, the
last one read all arrays that there were before. What would be computed of several arrays in several
places is given here to a function that gives it back as it is, and that XLA is told not to inline:
that copies nothing, and nothing is fused across it.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from jax.extend.mlir import ir

from xla_dynamo.dimension_orders import ELEMENTWISE, names
from xla_dynamo.lowerings import build
from xla_dynamo.own_functions import called

Value: TypeAlias = ir.Value
# Of so many arrays something may be computed in each of its readers; of more where it has so few
# elements that to be made apart costs as much.
_MOST, _MOST_WHERE_FEW = 1, 4
FEW = 1 << 14
# What XLA fuses beside operations element by element, and what there is nothing to read of.
_FUSED = ELEMENTWISE | names(
    "stablehlo", "broadcast_in_dim concatenate pad reshape reverse slice transpose"
)
_FREE = names("stablehlo", "constant iota")
_REDUCTIONS = names("stablehlo", "reduce reduce_window")


def make_once(module: ir.Module) -> None:
    """Write a module's `main` anew, so that nothing is computed in ever more places."""
    main = next(op for op in module.body.operations if op.name.value == "main")
    ops = [op.operation for op in main.entry_block.operations]
    apart = _read_apart(ops)
    arrays: dict[Value, frozenset[Value]] = {}
    for op in ops:
        if op.name not in _FUSED:
            continue
        (result,) = op.results
        size = _size(result)
        read = {v for x in op.operands for v in arrays.get(x, _read_of(x)) if 2 * _size(v) >= size}
        arrays[result] = frozenset(read)
        most = _MOST if size >= FEW else _MOST_WHERE_FEW
        if len(read) > most and result in apart:
            with ir.InsertionPoint.after(op), op.location:
                once = called(module, "once", [result], result.type, lambda x: x)
            result.replace_all_uses_except(once, once.owner.operation)
            arrays[once] = frozenset([once])


def _size(value: Value) -> int:
    return build.product(build.shape_of(value))


def _read_of(value: Value) -> Iterable[Value]:
    """The arrays behind a value that nothing fused makes."""
    return () if getattr(value.owner, "name", None) in _FREE else (value,)


def _read_apart(ops: Sequence[ir.Operation]) -> set[Value]:
    """The values that XLA would compute in several places, if it fused all that it can.

    One that several operations read, of which all then make one value, is not one of them.
    """
    numbers = {op: number for number, op in enumerate(ops)}
    nowhere = len(ops)
    # Of each fused operation: the first that all of its result goes through, and where XLA's loops
    # end that read it, which are reductions and what others need whole. Two of these say enough.
    through: dict[int, int] = {}
    ends: dict[int, frozenset[int]] = {}
    for number, op in reversed(list(enumerate(ops))):
        if op.name not in _FUSED:
            continue
        readers: set[int] = set()
        found: set[int] = set()
        for use in op.results[0].uses:
            reader = numbers.get(use.owner.operation, nowhere)  # it may be in a region
            if reader in ends:
                readers.add(reader)
                found |= ends[reader]
            else:
                readers.add(nowhere)
                reduces = reader < nowhere and ops[reader].name in _REDUCTIONS
                found.add(reader if reduces else number)
        while len(readers) > 1:
            first = min(readers)
            readers = (readers - {first}) | {through[first]}
        (through[number],) = readers or {nowhere}
        ends[number] = frozenset(sorted(found)[:2])
    return {
        ops[number].results[0]
        for number, first in through.items()
        if first == nowhere and len(ends[number]) > 1
    }
