"""Values that several read, and that are made of several arrays or by much work, are made once.

XLA:CPU computes an operation element by element anew in each reader that it can be fused with, and
the reader in each of its own. So along the residual sums of a model, or along their gradients, the
last one read all arrays that there were before. What would be computed of several arrays in several
places is given here to a function that gives it back as it is, and that XLA is told not to inline:
that copies nothing, and nothing is fused across it. Likewise what one loop would compute at several
places for each of its elements, as each step of a stencil does.
"""

import functools
from collections.abc import Sequence
from typing import TypeAlias

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.functions import main_of
from xla_dynamo.lowerings.passes.outline import called
from xla_dynamo.lowerings.passes.permuted_operations import ELEMENTWISE, names
from xla_dynamo.lowerings.target import Target

Value: TypeAlias = ir.Value
# Of so many arrays something may be computed in each of its readers; of more where it has so few
# elements that to be made apart costs as much.
_MOST, _MOST_WHERE_FEW = 1, 4
FEW = 1 << 14
# And by so many operations, where a reader needs it at several places: each step of a stencil
# would otherwise compute the one before at every neighbour, and those the one before that.
_MOST_WORK = 32
# What XLA fuses beside operations element by element, what of it reads at other places than it
# writes, and what there is nothing to read of.
_MOVES = names("stablehlo", "concatenate pad reverse slice transpose")
_FUSED = ELEMENTWISE | _MOVES | names("stablehlo", "broadcast_in_dim reshape")
_FREE = names("stablehlo", "constant iota")
_REDUCTIONS = names("stablehlo", "reduce reduce_window")


def materialize(module: ir.Module, target: Target) -> None:
    """Write a module's `main` anew, so that nothing is computed in ever more places."""
    main = main_of(module)
    ops = [op.operation for op in main.entry_block.operations]
    apart, moved = _read_apart(ops)
    arrays: dict[Value, dict[Value, int]] = {}
    work: dict[Value, dict[Value, int]] = {}
    for op in ops:
        if op.name not in _FUSED:
            continue
        (result,) = op.results
        many, much = _of_many_arrays(op, arrays), _of_much_work(op, work)
        if (many and result in apart) or (much and result in moved):
            with ir.InsertionPoint.after(op), op.location:
                once = called(module, "once", [result], result.type, lambda x: x)
            result.replace_all_uses_except(once, once.owner.operation)
            arrays[once] = {once: _size(result)}


def _of_many_arrays(op: ir.Operation, arrays: dict[Value, dict[Value, int]]) -> bool:
    """Whether an operation's result is computed of more arrays than readers may compute it of.

    Args:
        op: the operation, of one result.
        arrays: of each fused value the largest arrays that it is computed of, with their sizes, as
            many as are asked about; the result is added.
    """
    (result,) = op.results
    size = _size(result)
    behind = [arrays[x] if x in arrays else _read_of(x) for x in op.operands]
    read = {v: n for those in behind for v, n in those.items() if 2 * n >= size}
    largest = sorted(read, key=read.__getitem__, reverse=True)[: _MOST_WHERE_FEW + 1]
    arrays[result] = {v: read[v] for v in largest}
    return len(read) > (_MOST if size >= FEW else _MOST_WHERE_FEW)


def _of_much_work(op: ir.Operation, work: dict[Value, dict[Value, int]]) -> bool:
    """Whether an element of an operation's result takes more work than its readers may do again.

    Args:
        op: the operation, of one result.
        work: of each fused value the values that are computed for it at its own place, with how
            many operations each takes there; the result is added.
    """
    (result,) = op.results
    efforts = [work.get(x, {x: 1} if _is_read(x) else {}) for x in op.operands]
    if op.name in _MOVES:
        effort = {result: sum(sum(those.values()) for those in efforts) + 1}
    else:
        effort = {v: n for those in efforts for v, n in those.items()}
        effort |= {result: 1} if effort else {}
    much = sum(effort.values()) > _MOST_WORK
    work[result] = {result: _MOST_WORK + 1} if much else effort
    return much


def _size(value: Value) -> int:
    return build.product(build.shape_of(value))


def _read_of(value: Value) -> dict[Value, int]:
    """The arrays behind a value that nothing fused makes, with their sizes."""
    return {value: _size(value)} if _is_read(value) else {}


def _is_read(value: Value) -> bool:
    return getattr(value.owner, "name", None) not in _FREE


def _read_apart(ops: Sequence[ir.Operation]) -> tuple[set[Value], set[Value]]:
    """The values that XLA would compute in several places, if it fused all that it can.

    One that several operations read, of which all then make one value, is not one of the first of
    the two sets that are returned, but of the second where they read it at several places.
    """
    numbers = {op: number for number, op in enumerate(ops)}
    nowhere = len(ops)
    # Of each fused operation: the first that all of its result goes through, and where XLA's loops
    # end that read it, which are reductions and what others need whole. Two of these say enough.
    through = _Through(nowhere)
    ends: dict[int, frozenset[int]] = {}
    moved: set[int] = set()
    dead: set[int] = set()  # the places of maxima, where nobody asks for them
    for number, op in reversed(list(enumerate(ops))):
        if op.name not in _FUSED:
            continue
        readers: set[int] = set()
        found: set[int] = set()
        for use in op.results[0].uses:
            reader = numbers.get(use.owner.operation, nowhere)  # it may be in a region
            if reader in dead:
                continue
            if reader in ends:
                readers.add(reader)
                found |= ends[reader]
            else:
                readers.add(nowhere)
                reduces = reader < nowhere and ops[reader].name in _REDUCTIONS
                found.add(reader if reduces else number)
        if not readers:
            dead.add(number)
            continue
        first = functools.reduce(through.both, readers)
        if any(through.moves[reader] > through.moves[first] for reader in readers):
            moved.add(number)
        through.add(number, first, number in moved or op.name in _MOVES)
        ends[number] = frozenset(sorted(found)[:2])
    apart = {n for n in ends if through.next[n] == nowhere and len(ends[n]) > 1}
    return {ops[n].results[0] for n in apart}, {ops[n].results[0] for n in moved}


class _Through:
    """What each operation's result goes through, one after another, until it is read elsewhere.

    A tree, with for each operation a longer way towards the root beside the way to the next, so
    that where two meet is found in logarithmic time (Myers, An applicative random-access stack,
    1983).
    """

    def __init__(self, root: int) -> None:
        self.next, self._far, self._depth = {root: root}, {root: root}, {root: 0}
        self.moves = {root: 0}  # how many on the way read at other places than they write

    def add(self, number: int, following: int, moves: bool) -> None:
        """Put an operation before one that is there."""
        far, depth = self._far[following], self._depth
        twice = depth[following] - depth[far] == depth[far] - depth[self._far[far]]
        self.next[number] = following
        self._far[number] = self._far[far] if twice else following
        self._depth[number] = depth[following] + 1
        self.moves[number] = self.moves[following] + moves

    def both(self, one: int, other: int) -> int:
        """The first that two go through, which may be one of them."""
        if self._depth[one] < self._depth[other]:
            one, other = other, one
        while self._depth[one] > self._depth[other]:
            far = self._far[one]
            one = far if self._depth[far] >= self._depth[other] else self.next[one]
        while one != other:
            # As deep as each other, both have ways of the same lengths.
            apart = self._far[one] != self._far[other]
            one, other = (
                (self._far[one], self._far[other]) if apart else (self.next[one], self.next[other])
            )
        return one
