"""What each line of the user's program will cost: an estimate from the program, without a run."""

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping

from xla_dynamo.events import BuiltExecutable
from xla_dynamo.reports.hlo_costs import OperationCost, costs_of
from xla_dynamo.reports.hlo_places import Place, places_of
from xla_dynamo.reports.hlo_text import Instruction, Module, parse

# A byte takes as long as so many operations: today's CPUs and GPUs compute 5 to 20 in float32 in
# the time in which they read one from memory. Only shares are told, and they depend little on it.
_FLOPS_PER_BYTE = 10.0
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "iota", "broadcast"),
}
_CONTAINERS = frozenset(["call", "while", "conditional"])


@dataclasses.dataclass(frozen=True, slots=True)
class LineCost:
    """What one line of the user's program is estimated to cost in one run of a program.

    Attributes:
        file, line: where it is; "" and 0 for what has no line of its own, as optimizers.
        flops: floating-point operations, those in calls of libraries included.
        bytes: read and written. Of a fusion of several lines each has an equal part.
        share: the part of the whole program's estimated time, from 0 to 1.
        operators: the names of the graph's nodes there.
    """

    file: str
    line: int
    flops: float
    bytes: float
    share: float
    operators: tuple[str, ...]


def line_costs(built: BuiltExecutable) -> list[LineCost]:
    """The estimated costs of a program's lines, the most expensive first."""
    if built.executable is None:
        return []
    text, _, notes = built.executable.text_and_notes()
    module = parse(text)
    return lines_of(module, places_of(module, notes), costs_of(module, notes))


def lines_of(
    module: Module,
    places: Mapping[str, tuple[Place, ...]],
    costs: Mapping[str, OperationCost],
) -> list[LineCost]:
    """The same of a module, whose instructions come from these places and cost so much."""
    flops: dict[tuple[str, int], float] = collections.defaultdict(float)
    moved: dict[tuple[str, int], float] = collections.defaultdict(float)
    names: dict[tuple[str, int], set[str]] = collections.defaultdict(set)
    time: dict[tuple[str, int], float] = collections.defaultdict(float)
    for instruction, times in _units(module, module.entry, 1):
        cost = costs[instruction.name]
        found = places.get(instruction.name) or (Place("", 0),)
        keys = {(p.file, p.line) for p in found}
        for place in found:
            names[place.file, place.line].add(re.sub(r"_\d+$", "", place.operators))
        for key in keys:
            flops[key] += times * cost.flops / len(keys)
            moved[key] += times * cost.bytes / len(keys)
            time[key] += times * max(cost.flops / _FLOPS_PER_BYTE, cost.bytes) / len(keys)
    whole = sum(time.values()) or 1.0
    return [
        LineCost(*key, flops[key], moved[key], time[key] / whole, tuple(sorted(names[key] - {""})))
        for key in sorted(time, key=lambda key: -time[key])
    ]


def _units(module: Module, computation: str, times: int) -> Iterator[tuple[Instruction, int]]:
    """What runs as one instruction, and how often in a run of the program."""
    for one in module.computations.get(computation, ()):
        if one.opcode in _CONTAINERS:
            for inner in one.called:
                yield from _units(module, inner, times * (one.trip_count or 1))
        elif one.opcode not in _FREE:
            yield one, times
