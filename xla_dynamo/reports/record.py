"""The events of the calls of a function, and the counts made of them."""

import dataclasses
from typing import Any

from xla_dynamo.events import (
    BuiltExecutable,
    CompilationRecord,
    Event,
    Frame,
    GraphBreak,
    NotBucketed,
    Operator,
)
from xla_dynamo.reports.advice import Advice, advice_of
from xla_dynamo.reports.memory import ProgramMemory, memory_of
from xla_dynamo.reports.memory_timeline import CallMemory, timeline_of
from xla_dynamo.reports.watched_calls import WatchedCalls


class CompilationLog:
    """All that was compiled for the calls of a function.

    It grows while the function goes on being called: a backward graph comes with the first
    `backward()`, an executable with the first call at its sizes.

    Attributes:
        subject: the name of the function.
        result: what the last call returned.
        events: what happened, in its order.
        calls: what the calls of each executable did.
        inputs: the user's names of what a graph of Dynamo's is given, by compile id.
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.result: Any = None
        self.events: list[Event] = []
        self.calls: list[WatchedCalls] = []
        self.inputs: dict[str | None, list[str]] = {}

    def add(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, Frame):
            # Code that another backend compiled before never fits: that is no news.
            ours = {frame.compile_id for frame in self.frames}
            failed = {i: reason for i, reason in event.failed_guards.items() if i in ours}
            event = dataclasses.replace(event, failed_guards=failed)
        self.events.append(event)

    @property
    def graphs(self) -> list[CompilationRecord]:
        """The ATen graphs, in the order they were compiled."""
        return [e for e in self.events if isinstance(e, CompilationRecord)]

    @property
    def graph_breaks(self) -> list[GraphBreak]:
        """Where Dynamo ended graphs, each line once: callers end there too, for that reason."""
        found: dict[Any, GraphBreak] = {}
        for event in self.events:
            if isinstance(event, GraphBreak):
                found.setdefault(event.line or event.reason, event)
        return list(found.values())

    @property
    def frames(self) -> list[Frame]:
        """The functions that Dynamo compiled, each time that it did."""
        return [e for e in self.events if isinstance(e, Frame)]

    @property
    def recompiles(self) -> list[Frame]:
        """Those that it had compiled before."""
        return [frame for frame in self.frames if frame.recompiled is not None]

    @property
    def executables(self) -> list[BuiltExecutable]:
        """What XLA compiled: one for each part of a graph and each tuple of its sizes."""
        return [e for e in self.events if isinstance(e, BuiltExecutable)]

    @property
    def not_bucketed(self) -> list[NotBucketed]:
        """The graphs that are compiled for each tuple of sizes where bounds were asked for."""
        return [e for e in self.events if isinstance(e, NotBucketed)]

    @property
    def eager_operators(self) -> list[tuple[CompilationRecord, Operator]]:
        """The operators that torch runs, with their graphs."""
        return [(graph, o) for graph in self.graphs for o in graph.operators if o.eager]

    @property
    def advice(self) -> list[Advice]:
        """What the user can change so that calls become faster, the most valuable first."""
        return advice_of(self)

    def place(self, frame: Frame) -> str:
        """The function; torch wraps what it has itself, such as its own modules."""
        line = frame.line
        return f"{line.function} ({line.file}:{line.line})" if line.is_users else self.subject

    def argument(self, built: BuiltExecutable, index: int) -> str:
        """The user's name of an input of a graph, or what else is known of it."""
        nodes = built.graph.graph().graph.find_nodes(op="placeholder")
        if index >= len(nodes):
            return f"number {index + 1}"
        described = nodes[index].meta.get("desc")
        if target := getattr(described, "target", None):
            return str(target)
        number: Any = getattr(described, "idx", None if described is not None else index)
        names = self.inputs.get(built.graph.compile_id, [])
        if isinstance(number, int) and number < len(names):
            return names[number]
        return str(nodes[index].name)

    @property
    def memory(self) -> list[ProgramMemory]:
        """The memory that each program needs for a run, on each of its devices."""
        return [found for built in self.executables if (found := memory_of(built)) is not None]

    @property
    def memory_timeline(self) -> list[CallMemory]:
        """The memory of the process around the latest calls of programs, in their order."""
        return timeline_of(self.calls)

    @property
    def seconds(self) -> dict[str, float]:
        """The time that compiling took by stage: Dynamo, AOTAutograd, lowering, XLA."""
        found = dict.fromkeys(("Dynamo", "AOTAutograd", "lowering", "XLA"), 0.0)
        for event in self.events:
            if isinstance(event, BuiltExecutable):
                found["lowering"] += event.seconds[0]
                found["XLA"] += event.seconds[1]
            elif isinstance(event, Frame):
                found["Dynamo"] += event.seconds - event.backend_seconds
                inside = [
                    g for g in self.graphs if event.end - event.seconds <= g.start < event.end
                ]
                of_it = sum(g.seconds for g in inside if g.compile_id == event.compile_id)
                found["AOTAutograd"] += max(event.backend_seconds - of_it, 0.0)
        return found

    def summary(self) -> str:
        """One line of counts."""
        counts = {
            "graph": len(self.graphs),
            "graph break": len(self.graph_breaks),
            "recompilation": len(self.recompiles),
            "executable": len(self.executables),
            "operator in eager torch": len(self.eager_operators),
        }
        return ", ".join(f"{n} {name if n == 1 else _plural(name)}" for name, n in counts.items())


def _plural(name: str) -> str:
    return name.replace("operator", "operators") if "operator" in name else f"{name}s"
