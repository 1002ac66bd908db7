"""Operations of programs as events of Chrome's trace format, which Perfetto reads, too.

The format is the "Trace Event Format" of Chrome's about:tracing.
"""

import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from xla_dynamo.reports.line_times import Programs
from xla_dynamo.reports.peaks import Peaks
from xla_dynamo.reports.trace_events import Operation, Trace
from xla_dynamo.reports.wall_time import TorchEvent, read_json, write_json


def write_trace(
    path: pathlib.Path,
    trace: Trace,
    programs: Programs,
    peaks: Peaks,
    others: Sequence[TorchEvent],
) -> None:
    """Write the operations, and what torch's profiler saw, as a trace of their own."""
    events = [*_of_programs(trace, programs, peaks, trace.began), *_of_torch(others, trace.began)]
    about = {"displayTimeUnit": "ms", "baseTimeNanoseconds": trace.began}
    write_json(path, {**about, "traceEvents": events})


def add_to_trace(path: pathlib.Path, trace: Trace, programs: Programs, peaks: Peaks) -> None:
    """Put the operations into the trace that torch's profiler wrote, on the same clock."""
    given = read_json(path)
    base = int(given.get("baseTimeNanoseconds", 0))
    given["traceEvents"] += _of_programs(trace, programs, peaks, base)
    write_json(path, given)


def _of_programs(
    trace: Trace, programs: Programs, peaks: Peaks, base: int
) -> Iterable[dict[str, Any]]:
    threads: dict[str, int] = {}
    for run in trace.runs:
        program = programs.of(run)
        for op in run:
            thread = threads.setdefault(op.thread, (1 << 20) + len(threads))
            yield {
                "ph": "X",
                "cat": "xla_operation",
                "name": _title(op, program),
                "pid": os.getpid(),
                "tid": thread,
                "ts": (trace.began + op.start - base) / 1e3,
                "dur": (op.end - op.start) / 1e3,
                "args": _about(op, program, peaks),
            }
    for name, thread in threads.items():
        title = f"XLA {'caller' if name == 'python' else 'thread'} {thread - (1 << 20)}"
        about = {"ph": "M", "pid": os.getpid(), "tid": thread, "ts": 0}
        yield {**about, "name": "thread_name", "args": {"name": title}}
        yield {**about, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _title(op: Operation, program: Any) -> str:
    kind = program.kinds.get(op.name, "")
    return op.name if not kind or kind.startswith("XLA ") else f"{kind}: {op.name}"


def _about(op: Operation, program: Any, peaks: Peaks) -> dict[str, Any]:
    places = program.places.get(op.name, ())
    files = [f"{p.file}:{p.line}" for p in places if p.file]
    about: dict[str, Any] = {
        "program": program.name,
        "instruction": op.name,
        "kind": program.kinds.get(op.name, "unknown"),
        "line": ", ".join(dict.fromkeys(files)),
        "module": ", ".join(dict.fromkeys(p.module for p in places if p.module)),
        "phase": ", ".join(dict.fromkeys(p.phase for p in places if p.phase)),
    }
    if (cost := program.costs.get(op.name)) is not None:
        about |= {"flops": cost.flops, "bytes": cost.bytes}
        bound = peaks.bound(cost.flops, cost.bytes, cost.dtype)
        about["share of the bound"] = round(bound * 1e9 / max(op.end - op.start, 1), 4)
    return {key: value for key, value in about.items() if value != ""}


def _of_torch(events: Sequence[TorchEvent], base: int) -> Iterable[dict[str, Any]]:
    for event in events:
        yield {
            "ph": "X",
            "cat": "torch",
            "name": event.name,
            "pid": os.getpid(),
            "tid": event.thread,
            "ts": (event.start - base) / 1e3,
            "dur": (event.end - event.start) / 1e3,
        }
