"""Group the arguments of a program by the part that they play, so that each group is sharded alike.

What an optimizer keeps of a parameter goes with it: elementwise operations between arrays of one
shape tie them. Parameters of the same place in layers that are alike are of one group: the
operations around them agree.
"""

import collections
import dataclasses
import zlib
from collections.abc import Collection, Sequence
from typing import Any

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.functions import main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE
from xla_dynamo.lowerings.builders.values import Value, nbytes_of, shape_of

_ROUNDS = 3  # what tells a projection that reads a norm from one that reads attention


@dataclasses.dataclass(frozen=True, slots=True)
class Role:
    """Arguments that are to be sharded alike.

    Attributes:
        arguments: their numbers.
        shape: of each.
        bytes: of all.
        is_state: whether the program changes them, or what is tied to them.
    """

    arguments: tuple[int, ...]
    shape: tuple[int, ...]
    bytes: int
    is_state: bool


def roles_of(module: ir.Module, free: Collection[int], changed: Collection[int]) -> list[Role]:
    """The roles of a program's arguments, those of the most bytes first.

    Args:
        module: the program, whose `main` has no duplicates of operations.
        free: the arguments, by number, that may be sharded.
        changed: those whose new values the program computes.
    """
    main = main_of(module)
    # Without the return: its operands differ by their places alone.
    operations = operations_of(main)[:-1]
    arguments = list(main.entry_block.arguments)
    tied = _tied(arguments, operations)
    looks = _looks(arguments, operations)
    members: dict[Any, list[int]] = collections.defaultdict(list)
    for number in free:
        if shape_of(arguments[number]):
            members[tied[number]].append(number)
    found: dict[Any, list[list[int]]] = collections.defaultdict(list)
    for numbers in members.values():
        states = not set(numbers).isdisjoint(changed)
        look = tuple(sorted(looks[n] for n in numbers))
        found[shape_of(arguments[numbers[0]]), states, look].append(numbers)
    roles = []
    for (shape, states, _), groups in found.items():
        every = tuple(sorted(n for numbers in groups for n in numbers))
        size = sum(nbytes_of(arguments[n]) for n in every)
        roles.append(Role(every, shape, size, states))
    return sorted(roles, key=lambda role: (-role.bytes, role.arguments))


def _tied(arguments: Sequence[Value], operations: Sequence[ir.Operation]) -> list[Any]:
    """For each argument, what is equal for those that elementwise operations tie together."""
    parent: dict[Value, Value] = {}

    def root(value: Value) -> Value:
        while (up := parent.get(value, value)) != value:
            parent[value] = parent.get(up, up)
            value = up
        return value

    for op in operations:
        if op.name in ELEMENTWISE:
            shape = shape_of(op.results[0])
            for operand in op.operands:
                if shape_of(operand) == shape:
                    parent[root(operand)] = root(op.results[0])
    return [root(argument) for argument in arguments]


def _looks(arguments: Sequence[Value], operations: Sequence[ir.Operation]) -> list[int]:
    """For each argument, a number that is equal where the operations around it are alike.

    As Weisfeiler and Leman compare graphs: each round takes in what lies one operation further.
    """
    look = {value: _number(str(value.type)) for value in arguments}
    for op in operations:
        look.update((result, _number(op.name, str(result.type))) for result in op.results)
    for _ in range(_ROUNDS):
        around: dict[Value, list[int]] = collections.defaultdict(list)
        for op in operations:
            operands = [look[x] for x in op.operands]
            whole = _number(op.name, *operands, *(look[x] for x in op.results))
            for place, value in enumerate((*op.operands, *op.results)):
                around[value].append(_number(whole, place))
        look = {value: _number(old, *sorted(around[value])) for value, old in look.items()}
    return [look[value] for value in arguments]


def _number(*parts: Any) -> int:
    """A number that is the same in each process, unlike `hash` of text."""
    return zlib.crc32(repr(parts).encode())
