"""The memory that a program needs while it runs, by its schedule: how much, when, and for what."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from xla_dynamo.events import BuiltExecutable
from xla_dynamo.reports.hlo_places import Place, places_of
from xla_dynamo.reports.hlo_text import Instruction, Module, parse

# They return memory of their operands, or none.
_IN_PLACE = {
    *("fusion", "call", "scatter", "dynamic-update-slice", "select", "add", "subtract"),
    *("multiply", "divide", "maximum", "minimum", "negate", "exponential", "tanh"),
}
_VIEWS = {
    *("bitcast", "get-tuple-element", "tuple", "while", "optimization-barrier", "after-all"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor that is in memory at a program's peak.

    Attributes:
        name: the instruction's, in optimized HLO.
        shown: its dtype and sizes: "f32[64,1024]".
        bytes: how many it takes.
        kind: "argument", "result" or "temporary".
        places: the user's lines that it comes from.
        node: the name of the graph's node that it comes from; "" if that is not known.
    """

    name: str
    shown: str
    bytes: int
    kind: str
    places: tuple[Place, ...]
    node: str


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """The memory of a program while one of its instructions runs.

    Attributes:
        instruction: its name.
        bytes: of arguments, results and temporaries that are there.
        places: the user's lines that the instruction comes from.
    """

    instruction: str
    bytes: int
    places: tuple[Place, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramMemory:
    """The memory of one program, on each device.

    Attributes:
        name: the program's.
        argument_bytes, result_bytes, alias_bytes, temporary_bytes: as XLA has assigned them; what
            is aliased is results that are written into the memory of arguments.
        peak_bytes: the most that is in memory at once, by the schedule.
        timeline: the memory at each instruction, in the order in which they run. A loop is one
            instruction, and has what its body needs at its peak.
        held: the tensors that are there at the peak, the largest first.
    """

    name: str
    argument_bytes: int
    result_bytes: int
    alias_bytes: int
    temporary_bytes: int
    peak_bytes: int
    timeline: tuple[Moment, ...]
    held: tuple[HeldTensor, ...]

    @property
    def assigned_bytes(self) -> int:
        """What XLA has set aside for a run."""
        results = self.result_bytes - self.alias_bytes
        return self.argument_bytes + results + self.temporary_bytes


def memory_of(built: BuiltExecutable) -> ProgramMemory | None:
    """The memory of an executable; None where there is nothing to compute, or no figures."""
    stats = built.executable.memory_stats() if built.executable else None
    if built.executable is None or stats is None:
        return None
    text, _, notes = built.executable.text_and_notes()
    module = parse(text)
    timeline, held = _entry(module, places_of(module, notes))
    return ProgramMemory(
        built.name,
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.temp_size_in_bytes,
        max((m.bytes for m in timeline), default=0),
        timeline,
        held,
    )


def _entry(
    module: Module, places: Mapping[str, tuple[Place, ...]]
) -> tuple[tuple[Moment, ...], tuple[HeldTensor, ...]]:
    """The timeline of what a call runs, and the tensors at its peak."""
    body = module.computations.get(module.entry, [])
    buffers = _Buffers(module, body, is_entry=True)
    timeline, peak, at_peak = [], -1, dict[str, int]()
    for index, one in enumerate(body):
        there = buffers.live_at(index)
        inner = buffers.inside(one)
        total = sum(there.values()) + inner
        timeline.append(Moment(one.name, total, places.get(one.name, ())))
        if total > peak:
            peak, at_peak = total, there | ({f"inside {one.name}": inner} if inner else {})
    by_name = {one.name: one for one in body}
    held = [
        HeldTensor(
            name,
            by_name[name].shown if name in by_name else "temporaries of a loop or a call",
            nbytes,
            buffers.kind(name),
            places.get(name.removeprefix("inside "), ()),
            by_name[name].node if name in by_name else "",
        )
        for name, nbytes in sorted(at_peak.items(), key=lambda item: -item[1])
        if nbytes
    ]
    return tuple(timeline), tuple(held)


class _Buffers:
    """When each value of a computation is in memory."""

    def __init__(
        self, module: Module, body: Sequence[Instruction], *, is_entry: bool = False
    ) -> None:
        self._module, self._by_name = module, {one.name: one for one in body}
        self._end = len(body)
        self._results: set[str] = set()
        self._shared: dict[str, str] = {}
        self.own: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._first = {one.name: index for index, one in enumerate(body)}
        root = next((one for one in body if one.is_root), None)
        self._arguments = {one.name for one in body if one.opcode == "parameter"}
        if root is not None:
            self._results = {s for name in (root.operands or (root.name,)) for s in self.of(name)}
            if root.opcode != "tuple":
                self._results = set(self.of(root.name))
        # A donated argument is free from its last reading on, until a result is written there.
        numbers = {n.name: _number_of(n) for n in body if n.opcode == "parameter"}
        taken = set(module.aliases.values()) if is_entry else set()
        self._donated = {name for name, number in numbers.items() if number in taken}
        for index, one in enumerate(body):
            if (
                one.opcode in _VIEWS
                or one.opcode == "constant"
                or (one.opcode == "parameter" and not is_entry)
            ):
                self.own[one.name] = 0
            else:
                self.own[one.name] = one.bytes
            for operand in (*one.operands, one.name):
                for source in self.of(operand):
                    self._last[source] = index
        for name in self._results | (self._arguments - self._donated):
            self._last[name] = self._end
        self._kept = self._arguments - self._donated
        self._share(body)
        if is_entry:
            self._first |= dict.fromkeys(self._arguments, 0)

    def _share(self, body: Sequence[Instruction]) -> None:
        """Let an instruction write over an operand of its size that nobody reads afterwards."""
        for index, one in enumerate(body):
            if one.opcode not in _IN_PLACE or not self.own[one.name]:
                continue
            for source in (s for operand in one.operands for s in self.of(operand)):
                free = self._last[source] == index and source not in self._kept
                if free and self.own[source] == self.own[one.name]:
                    self.own[one.name], self._shared[one.name] = 0, source
                    self._last[source] = self._last[one.name]
                    if one.name in self._results:
                        self._results.add(source)
                    break

    def of(self, name: str) -> Iterator[str]:
        """The values whose memory a value is in."""
        while name in self._shared:
            name = self._shared[name]
        one = self._by_name.get(name)
        if one is None:
            return
        if one.opcode in _VIEWS and one.operands:
            for operand in one.operands:
                yield from self.of(operand)
        else:
            yield name

    def live_at(self, index: int) -> dict[str, int]:
        """The bytes of what is in memory while an instruction runs, by name."""
        return {
            name: nbytes
            for name, nbytes in self.own.items()
            if nbytes and self._first[name] <= index <= self._last.get(name, -1)
        }

    def inside(self, one: Instruction) -> int:
        """What an instruction needs for itself: the most that a computation of it needs at once."""
        if one.opcode not in ("while", "call", "conditional"):
            return 0
        return max((_peak(self._module, name) for name in one.called), default=0)

    def kind(self, name: str) -> str:
        """What a value is for the program."""
        if name in self._arguments:
            return "argument"
        return "result" if name in self._results else "temporary"


def _number_of(parameter: Instruction) -> int:
    """Which of a program's arguments a parameter is."""
    return int(parameter.text.partition("parameter(")[2].partition(")")[0])


def _peak(module: Module, computation: str) -> int:
    """The most that a computation needs beside its arguments and its result."""
    body = module.computations.get(computation, [])
    buffers = _Buffers(module, body)
    for name in [one.name for one in body if one.is_root]:
        for source in buffers.of(name):
            buffers.own[source] = 0
    # What holds its memory changes only where values begin.
    changes: collections.Counter[int] = collections.Counter()
    for name, nbytes in buffers.own.items():
        if nbytes:
            changes[buffers._first[name]] += nbytes
            changes[buffers._last.get(name, 0) + 1] -= nbytes
    now = most = 0
    for index, one in enumerate(body):
        now += changes[index]
        most = max(most, now + buffers.inside(one))
    return most
