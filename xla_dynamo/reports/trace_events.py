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
        thread: the name of the thread or stream that it ran in.
        program: the name of the HLO module that it is in.
    """

    name: str
    start: float
    end: float
    alone: float
    thread: str = ""
    program: str = ""


@dataclasses.dataclass(frozen=True)
class Trace:
    """What a trace has of programs.

    Attributes:
        began: when the trace began, in nanoseconds since 1970 (as `time.time_ns` counts).
        runs: the operations of each run of a program.
    """

    began: int
    runs: list[list[Operation]]


def read_trace(folder: pathlib.Path) -> Trace:
    """What the traces in a folder have of programs."""
    found: dict[Any, list[Operation]] = collections.defaultdict(list)
    began = 0
    for path in sorted(folder.rglob("*.xplane.pb")):
        data = jax.profiler.ProfileData.from_file(str(path))
        for plane in data.planes:
            stats = dict(plane.stats)
            began = began or int(stats.get("profile_start_time", 0))
            for line in plane.lines:
                for run, operation in _on_thread(line.events, line.name):
                    found[str(path), run].append(operation)
    return Trace(began, list(found.values()))


def _on_thread(events: Iterable[Any], thread: str) -> list[tuple[Any, Operation]]:
    """The operations of one thread or stream, each with its run."""
    given = []
    for event in events:
        name = event.name
        if name.startswith(("end: ", "Threadpool", "Wait for ")):
            continue
        stats = dict(event.stats)
        if "hlo_op" in stats:
            start = event.start_ns
            run = stats.get("run_id"), stats.get("program_id"), stats.get("device_ordinal")
            what = str(stats["hlo_op"]), str(stats.get("hlo_module", ""))
            given.append((start, start + event.duration_ns, what, run))
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
        (run, Operation(name, start, end, max(end - start - within, 0.0), thread, program))
        for (start, end, (name, program), run), within in zip(given, inside, strict=True)
    ]


def spans_of(runs: Sequence[Sequence[Operation]]) -> list[tuple[float, float]]:
    """When each run began and ended."""
    return [(min(op.start for op in run), max(op.end for op in run)) for run in runs]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """How long it was in at least one of some spans."""
    total, last = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(end - max(start, last), 0.0)
        last = max(last, end)
    return total
