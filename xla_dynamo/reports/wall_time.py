"""Where the wall time of a block goes: programs, their calls, torch, compiling, Python."""

import dataclasses
import gzip
import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from xla_dynamo.calls.named_calls import COMPILATION, PREFIX
from xla_dynamo.reports.trace_events import covered

Span = tuple[float, float]
_INDUCTORS = "## Call CompiledFxGraph"  # its kernels are no operators


@dataclasses.dataclass(frozen=True)
class WallTime:
    """Where the time of a block goes, in seconds; each moment counts once.

    Attributes:
        wall: all of it.
        programs: programs ran, from their first operation to their last.
        border: in calls of programs, but before or after these ran: inputs are checked and handed
            over, results become tensors.
        compilation: Dynamo traced, graphs were lowered, XLA compiled.
        torch: torch's operators, or programs of Inductor, ran in this thread, outside of programs.
        python: the rest: Python, guards of compiled functions, waiting.
        is_whole: whether torch's operators, calls and compilations were watched. They are not where
            a torch profiler of the user's runs; they are in `python` then.
    """

    wall: float = 0.0
    programs: float = 0.0
    border: float = 0.0
    compilation: float = 0.0
    torch: float = 0.0
    python: float = 0.0
    is_whole: bool = True

    @property
    def parts(self) -> list[tuple[str, float]]:
        """The parts that add up to the wall time, with their names."""
        rest = "the rest (Python)" if self.is_whole else "the rest (torch, compiling, Python)"
        parts = [("programs", self.programs), ("borders of calls", self.border)]
        parts += [("torch's operators", self.torch), ("compilation", self.compilation)]
        return [*(parts if self.is_whole else parts[:1]), (rest, self.python)]

    def __str__(self) -> str:
        share = 100 * self.programs / self.wall if self.wall else 0.0
        texts = [f"{name} {seconds * 1e3:.1f}" for name, seconds in self.parts]
        texts[0] += f" ({share:.1f}%)"
        return f"{self.wall * 1e3:.1f} ms wall: {', '.join(texts)}"


def wall_time(block: Span, runs: Iterable[Span], events: Sequence["TorchEvent"] | None) -> WallTime:
    """Where the time of a block goes.

    Args:
        block: when it began and ended, in nanoseconds since 1970.
        runs: when programs ran.
        events: what torch's profiler saw; None where it did not run.
    """
    begin, end = block

    def clipped(spans: Iterable[Span]) -> list[Span]:
        return [(max(a, begin), min(b, end)) for a, b in spans if b > begin and a < end]

    def of(matches: Any) -> list[Span]:
        return clipped((e.start, e.end) for e in events or () if matches(e))

    wall, spans = end - begin, clipped(runs)
    known, seconds = 0.0, []
    layers = [
        of(lambda e: e.name.startswith(PREFIX) and e.name != COMPILATION),
        of(lambda e: e.name == COMPILATION or "(dynamo_timed)" in e.name),
        of(lambda e: "::" in e.name or e.name.startswith(_INDUCTORS)),
    ]
    for layer in (spans, *layers):
        spans = spans + layer
        total = covered(spans)
        seconds.append((total - known) / 1e9)
        known = total
    programs, border, compilation, of_torch = seconds
    python, is_whole = (wall - known) / 1e9, events is not None
    return WallTime(wall / 1e9, programs, border, compilation, of_torch, python, is_whole)


@dataclasses.dataclass(frozen=True, slots=True)
class TorchEvent:
    """An event of torch's profiler: its name, and nanoseconds since 1970."""

    name: str
    start: float
    end: float
    thread: int


def torch_events(path: pathlib.Path) -> list[TorchEvent]:
    """The events with a duration in a Chrome trace that torch's profiler wrote."""
    given = read_json(path)
    base = int(given.get("baseTimeNanoseconds", 0))
    found = []
    for event in given["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ("cpu_op", "user_annotation"):
            start = event["ts"] * 1e3 + base
            end = start + event["dur"] * 1e3
            thread = event["tid"] if isinstance(event["tid"], int) else 0
            found.append(TorchEvent(event["name"], start, end, thread))
    return found


def read_json(path: pathlib.Path) -> Any:
    """What a file of JSON has, which may be compressed."""
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def write_json(path: pathlib.Path, value: Any) -> None:
    """Write JSON, compressed if the name ends with .gz."""
    data = json.dumps(value).encode()
    path.write_bytes(gzip.compress(data, 6) if path.suffix == ".gz" else data)
