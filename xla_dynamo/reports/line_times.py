"""The runs of programs to the times of lines, of modules and of single operations."""

import collections
import dataclasses
import linecache
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xla_dynamo.reports.hlo_costs import OperationCost, costs_of
from xla_dynamo.reports.hlo_places import Place, kind_of, places_of
from xla_dynamo.reports.hlo_text import parse
from xla_dynamo.reports.peaks import Peaks
from xla_dynamo.reports.trace_events import Operation
from xla_dynamo.runtime.clients import live_executables
from xla_dynamo.runtime.executables import text_and_notes

_NUMBER = re.compile(r"_\d+$")  # of a node among those of one operator
_AROUND = ("while", "conditional", "call")


@dataclasses.dataclass(slots=True)
class Measured:
    """A time, and what was done in it.

    Attributes:
        seconds: the time, of all runs. Where operations ran at once, on several threads or
            devices, theirs are added.
        runs: how often an operation ran.
        flops: the floating-point operations of all runs.
        bytes: read and written in all runs, as if no cache held any.
        bound: the seconds that these take at least by the machine's measured peaks.
    """

    seconds: float = 0.0
    runs: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    bound: float = 0.0

    @property
    def flops_rate(self) -> float:
        """Floating-point operations a second."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def bytes_rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def share(self) -> float:
        """The share of the roofline's bound: 1 where the machine can do no better.

        More is possible where the caches hold what the bound counts as memory's.
        """
        return self.bound / self.seconds if self.seconds else 0.0

    def add(self, other: "Measured", part: float = 1.0) -> None:
        """Add a part of what another has."""
        self.seconds += other.seconds * part
        self.runs += other.runs
        self.flops += other.flops * part
        self.bytes += other.bytes * part
        self.bound += other.bound * part


@dataclasses.dataclass(slots=True)
class OperationTime(Measured):
    """The time of an instruction of a program.

    Attributes:
        name: the instruction's, in optimized HLO.
        kind: what it is: "XLA fusion", or a library's call as "oneDNN matmul".
        program: the program's name.
        places: the lines that it is fused of.
    """

    name: str = ""
    kind: str = ""
    program: str = ""
    places: tuple[Place, ...] = ()


@dataclasses.dataclass(slots=True)
class LineTime(Measured):
    """The time of what one line of the user's program computes.

    An operation that is fused of several lines has an equal part of its time in each.

    Attributes:
        file, line: where it is; "" and 0 for what has no line: see `phase`.
        text: the line.
        phase: what has no line: "optimizer: AdamW.step" say, or "module 0" of nn.Sequential.
        operators: the names of the graph's nodes there.
        backward: the part of `seconds` that is the gradient's.
        fused: with how many other lines it shares operations.
        operations: those of the line, the longest first.
    """

    file: str = ""
    line: int = 0
    text: str = ""
    phase: str = ""
    operators: tuple[str, ...] = ()
    backward: float = 0.0
    fused: int = 0
    operations: tuple[OperationTime, ...] = ()

    @property
    def where(self) -> str:
        """As "model.py:41" with the whole path, or what stands in the place of a line."""
        return f"{self.file}:{self.line}" if self.file else self.phase or "no line"


@dataclasses.dataclass(slots=True)
class ModuleTime(Measured):
    """The time of a module of the model, with those inside it.

    Attributes:
        path: as "layers.0.mlp"; "" for what is in none.
        backward: the part of `seconds` that is the gradient's.
    """

    path: str = ""
    backward: float = 0.0


class ProgramText:
    """What is known of a program's instructions.

    Attributes:
        name: the program's.
        module: that of its HLO module.
        places, costs, kinds: of each instruction, by name.
    """

    def __init__(self, hlo: str, name: str, notes: Mapping[str, Any]) -> None:
        """Read the optimized HLO."""
        module = parse(hlo)
        self.module, self.name = module.name, name or "program"
        self.names = module.instructions.keys()
        self.places = places_of(module, notes)
        self.costs = costs_of(module, notes)
        self.kinds = {name: kind_of(one) for name, one in module.instructions.items()}
        self.around = {
            name: frozenset(i.name for i in module.inside(one))
            for name, one in module.instructions.items()
            if one.opcode in _AROUND
        }


class Programs:
    """The programs of this process, by which of them has the instructions of a run."""

    def __init__(self, executables: Sequence[Any] | None = None) -> None:
        """Read the programs that are there now, or those of some executables of PJRT."""
        given = live_executables() if executables is None else executables
        self._known = [ProgramText(*text_and_notes(loaded)) for loaded in given]
        self._chosen: dict[tuple[str, frozenset[str]], ProgramText] = {}
        self._none = ProgramText("", "a program that is gone", {})

    def of(self, run: Sequence[Operation]) -> ProgramText:
        """The program of a run: of those with its name that which has most of its instructions.

        Programs that are equal in all but the user's lines may have one name.
        """
        module, names = run[0].program, frozenset(op.name for op in run)
        if (module, names) not in self._chosen:
            best = max(
                (one for one in self._known if one.module == module),
                key=lambda one: (len(names & one.names), -len(one.names)),
                default=self._none,
            )
            self._chosen[module, names] = best if names & best.names else self._none
        return self._chosen[module, names]


def operation_times(
    runs: Iterable[Sequence[Operation]], programs: Programs, peaks: Peaks
) -> list[OperationTime]:
    """The time of each instruction, the longest first."""
    found: dict[tuple[int, str], OperationTime] = {}
    for run in runs:
        program = programs.of(run)
        names = {op.name for op in run}
        for op in run:
            key = id(program), op.name
            if key not in found:
                found[key] = OperationTime(
                    name=op.name,
                    kind=program.kinds.get(op.name, "unknown"),
                    program=program.name,
                    places=program.places.get(op.name, ()),
                )
            time = found[key]
            time.seconds += op.alone / 1e9
            time.runs += 1
            if names.isdisjoint(program.around.get(op.name, ())):
                cost = program.costs.get(op.name, OperationCost())
                time.flops += cost.flops
                time.bytes += cost.bytes
                time.bound += peaks.bound(cost.flops, cost.bytes, cost.dtype)
    return sorted(found.values(), key=lambda time: -time.seconds)


def line_times(operations: Sequence[OperationTime]) -> list[LineTime]:
    """The time of each line, the longest first."""
    lines: dict[tuple[str, int, str], LineTime] = {}
    beside: dict[tuple[str, int, str], set[Any]] = collections.defaultdict(set)
    names: dict[tuple[str, int, str], set[str]] = collections.defaultdict(set)
    inside: dict[tuple[str, int, str], list[OperationTime]] = collections.defaultdict(list)
    for time in operations:
        places = time.places or (Place("", 0, phase=f"added by XLA: {time.kind}"),)
        keys = {_key(place) for place in places}
        for key in keys:
            if key not in lines:
                file, line, phase = key
                text = linecache.getline(file, line).strip() if file else ""
                lines[key] = LineTime(file=file, line=line, text=text, phase=phase)
            lines[key].add(time, 1 / len(keys))
            here = [place for place in places if _key(place) == key]
            backward = sum(place.phase == "backward" for place in here) / len(here)
            lines[key].backward += backward * time.seconds / len(keys)
            beside[key] |= keys - {key}
            inside[key].append(time)
            names[key] |= {_NUMBER.sub("", place.operators) for place in here} - {""}
    for key, line_time in lines.items():
        line_time.operators = tuple(sorted(names[key]))
        line_time.fused = len(beside[key])
        line_time.operations = tuple(inside[key])
    return sorted(lines.values(), key=lambda time: -time.seconds)


def _key(place: Place) -> tuple[str, int, str]:
    if place.file:
        return place.file, place.line, ""
    # Of a module of torch's that no line of the user's calls, as those of nn.Sequential.
    named = place.phase if place.phase not in ("", "backward") else ""
    return "", 0, named or (f"module {place.module}" if place.module else place.phase)


def module_times(operations: Sequence[OperationTime]) -> list[ModuleTime]:
    """The time of each module, in the order of paths, with those inside it."""
    found: dict[str, ModuleTime] = {}
    for time in operations:
        places = time.places or (Place("", 0),)
        paths = collections.Counter((p.module, p.phase == "backward") for p in places)
        part = 1 / sum(paths.values())
        for (path, is_backward), count in paths.items():
            parts = path.split(".") if path else []
            for depth in range(len(parts) + 1) if parts else [0]:
                outer = ".".join(parts[:depth])
                if not outer and parts:
                    continue
                one = found.setdefault(outer, ModuleTime(path=outer))
                one.add(time, part * count)
                one.backward += time.seconds * part * count if is_backward else 0.0
    return sorted(found.values(), key=lambda time: time.path)
