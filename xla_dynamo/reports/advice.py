"""Advice: what a user can change so that calls become faster, the most valuable first."""

import dataclasses
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from xla_dynamo.events import Frame

if TYPE_CHECKING:
    from xla_dynamo.reports.record import CompilationLog

# What is smaller is copied faster than its advice is read.
_LEAST_COPY = 64 * 1024
_LEAST_WASTE = 1.5
_MANY = 3


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Advice:
    """One piece of advice.

    Attributes:
        rank: of its kind, 0 for what usually costs most: a graph break or an operator in eager
            torch, then compiling again and again, padding, Python in programs, copies.
        weight: within its kind, the larger the more: seconds, bytes or counts.
        about: what was found.
        text: what to do.
    """

    rank: int
    weight: float
    about: str
    text: str

    def __str__(self) -> str:
        return f"{self.about}: {self.text}"


def advice_of(log: "CompilationLog") -> list[Advice]:
    """All advice for what was compiled and called, the most valuable first."""
    found = [*_breaks(log), *_eager(log), *_recompiled(log), *_sizes(log), *_calls(log)]
    return sorted(dict.fromkeys(found), key=lambda a: (a.rank, -a.weight))


def _breaks(log: "CompilationLog") -> Iterator[Advice]:
    for one in log.graph_breaks:
        about = f"this line breaks the graph: {one.line}" if one.line else "a graph breaks"
        yield Advice(
            0, 1, about, f"move it out of the compiled function, or replace it ({one.reason})"
        )


def _eager(log: "CompilationLog") -> Iterator[Advice]:
    for _, operator in log.eager_operators:
        where = f" at {operator.line}" if operator.line else ""
        about = f"torch runs {operator.name} and not XLA{where}"
        if "depends on values" in (operator.eager or ""):
            text = "compute with a mask (`torch.where`), so that sizes do not depend on values"
        else:
            text = f"replace it by other operators ({operator.eager})"
        yield Advice(0, 0.5, about, text)


def _recompiled(log: "CompilationLog") -> Iterator[Advice]:
    by_place: dict[str, list[Frame]] = {}
    for frame in log.recompiles:
        by_place.setdefault(log.place(frame), []).append(frame)
    for place, frames in by_place.items():
        seconds = sum(frame.seconds for frame in frames)
        why = (frames[-1].recompiled or "").splitlines()[0]
        if re.search(r"size|stride|dynamic", why):
            text = "give explain or torch.compile `dynamic=True`, or pad inputs to a few sizes"
        else:
            text = "keep equal between calls what the guard compares, or make it a tensor"
        about = f"{place} was compiled {len(frames)} times more, in {seconds:.1f} s, since {why}"
        yield Advice(1, seconds, about, text)


def _sizes(log: "CompilationLog") -> Iterator[Advice]:
    for one in log.not_bucketed:
        yield Advice(
            1, 0, f"{one.graph.name} is compiled for each tuple of sizes", f"change {one.reason}"
        )
    exact: dict[int, list[float]] = {}
    for built in log.executables:
        if built.sizes and built.reason != "a new bucket":
            exact.setdefault(built.graph.number, []).append(sum(built.seconds))
    for number, seconds in exact.items():
        if len(seconds) > _MANY and not log.not_bucketed:
            about = f"graph {number} has {len(seconds)} executables, one for each tuple of sizes"
            yield Advice(1, sum(seconds), about, 'give options={"buckets": [...]}, a few bounds')


def _calls(log: "CompilationLog") -> Iterator[Advice]:
    for calls in log.calls:
        name = calls.built.name
        if calls.wasted >= _LEAST_WASTE and calls.count >= _MANY:
            about = f"{name} computes {calls.wasted:.1f} times what was asked for"
            text = 'give options={"buckets": [...]} with bounds nearer to the sizes of your calls'
            yield Advice(2, calls.seconds * (1 - 1 / calls.wasted), about, text)
        if calls.through_python:
            about = f"{name} calls {calls.through_python} kernels of torch through Python"
            text = (
                "install llvmlite and onednn, by which plans run without Python (xla-dynamo doctor)"
            )
            yield Advice(3, calls.count, about, text)
        for copy in calls.copies.values():
            if copy.bytes >= _LEAST_COPY and copy.advice:
                argument = log.argument(calls.built, copy.index)
                about = (
                    f"argument {argument} is copied at each call ({copy.bytes:,} bytes, "
                    f"{copy.times} times), since {copy.reason}"
                )
                text = f"{copy.advice} argument `{argument}` once, before the calls"
                yield Advice(4, copy.bytes * copy.times, about, text)
