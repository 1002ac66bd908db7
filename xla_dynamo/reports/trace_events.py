"""What ran when, from a trace of JAX's profiler: operations of programs, run by run."""

import collections
import dataclasses
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
    """One run of an instruction.

    Attributes:
        name: the instruction's, in optimized HLO.
        start, end: nanoseconds since the trace began.
        alone: nanoseconds of it in which no instruction inside it ran.
    """

    name: str
    start: float
    end: float
    alone: float


def runs_of(folder: pathlib.Path) -> list[list[Operation]]:
    """The operations of each run of a program, of the traces in a folder."""
    found: dict[Any, list[Operation]] = collections.defaultdict(list)
    for path in sorted(folder.rglob("*.xplane.pb")):
        data = jax.profiler.ProfileData.from_file(str(path))
        for plane in data.planes:
            for line in plane.lines:
                for run, operation in _on_thread(line.events):
                    found[str(path), run].append(operation)
    return list(found.values())


def _on_thread(events: Iterable[Any]) -> list[tuple[Any, Operation]]:
    """The operations of one thread or stream, each with its run."""
    given = []
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats and not event.name.startswith("end: "):
            start = event.start_ns
            run = stats.get("run_id"), stats.get("program_id")
            given.append((start, start + event.duration_ns, str(stats["hlo_op"]), run))
    given.sort(key=lambda e: (e[0], -e[1]))
    inside = [0.0] * len(given)
    around: list[int] = []
    for number, (start, end, *_) in enumerate(given):
        while around and given[around[-1]][1] <= start:
            around.pop()
        if around:
            inside[around[-1]] += end - start
        around.append(number)
    return [
        (run, Operation(name, start, end, max(end - start - within, 0.0)))
        for (start, end, name, run), within in zip(given, inside, strict=True)
    ]


def covered(runs: Sequence[Sequence[Operation]]) -> float:
    """The nanoseconds in which some operation ran."""
    spans = sorted((op.start, op.end) for run in runs for op in run)
    total, last = 0.0, float("-inf")
    for start, end in spans:
        total += max(end - max(start, last), 0.0)
        last = max(last, end)
    return total
