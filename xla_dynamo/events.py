"""The events of a compilation, which observers are told: the log, and the reports of `explain`."""

import dataclasses
import functools
import itertools
import logging
import operator
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.nodes import is_number, operator_of
from xla_dynamo.graphs.source_lines import SourceLine, source_line
from xla_dynamo.graphs.subjects import titled
from xla_dynamo.programs.program import Program
from xla_dynamo.runtime.executables import Cost, Executable
from xla_dynamo.torch_private import CompileContext

log = logging.getLogger("xla_dynamo")
_numbers = itertools.count(1)


@dataclasses.dataclass(frozen=True)
class GraphBreak:
    """Dynamo ended a graph: what follows is run by Python, or is another graph.

    Attributes:
        reason: Dynamo's own, in one line.
        line: where, in the user's program.
        advice: Dynamo's explanation and hints.
    """

    reason: str
    line: SourceLine | None
    advice: str

    def __str__(self) -> str:
        return f"graph break: {self.reason}\n  at {self.line}"


@dataclasses.dataclass(frozen=True)
class Frame:
    """Dynamo compiled a function, or `train_step` a step.

    Attributes:
        compile_id: "2/1" is the second compilation of the third function; None for a training step,
            whose trace comes after Dynamo's.
        line: where the function begins.
        failed_guards: why earlier compilations did not fit, by their ids.
        seconds: how long all of it took, graphs that were compiled meanwhile included.
        backend_seconds: the part of it after Dynamo had its graph.
        end: when it ended, by `time.perf_counter`.
    """

    compile_id: str | None
    line: SourceLine
    failed_guards: Mapping[str | None, str]
    seconds: float
    backend_seconds: float
    end: float = dataclasses.field(default_factory=time.perf_counter)

    @property
    def recompiled(self) -> str | None:
        """Why it was compiled anew, one reason a line; None for a first compilation."""
        return "\n".join(dict.fromkeys(self.failed_guards.values())) or None

    def __str__(self) -> str:
        how = "compiled" if self.recompiled is None else "recompiled"
        why = f", since {self.recompiled}" if self.recompiled else ""
        where = f"{self.line.function} ({self.line.file}:{self.line.line})"
        return f"{how} {where} in {self.seconds:.2f} s{why}"


@dataclasses.dataclass(frozen=True)
class Operator:
    """A node of an ATen graph.

    Attributes:
        name: the overload, as in "aten.addmm.default".
        line: the user's line behind it.
        decomposed_from: the operator that torch's decomposition made it from, if it did.
        eager: why torch runs it and not XLA; None if XLA does.
    """

    name: str
    line: SourceLine | None
    decomposed_from: str | None
    eager: str | None


class CompilationRecord:
    """The record of one graph in `compile_graph`; it decides nothing.

    Attributes:
        number: counted through the process, from 1.
        kind: "inference", "forward", "backward", "training step" or what else it is.
        subject: what the graph is made of, as the model's class; "" where nobody knows.
        compile_id: that of Dynamo's frame, if there is one.
        parts: how many parts of it XLA compiles: 1 where that is all of it.
        graph: gives the ATen graph.
        is_split: whether torch runs a part of it.
        tell: takes the events of this graph.
        watch: makes of an executable, its call, and the bounds of its sizes the call that is to be
            made in its place; None where nobody watches calls, which then cost nothing more.
        start: when `compile_graph` began, by `time.perf_counter`.
        seconds: how long it took; executables for sizes that came later not included.
    """

    def __init__(
        self,
        graph: Callable[[], torch.fx.GraphModule],
        kind: str,
        observer: "Observer",
        subject: str,
    ) -> None:
        """Begin a graph, which may have to be read first, whose events `observer` is told."""
        self.number, self.kind, self.tell = next(_numbers), kind, observer
        self.subject = subject
        self.watch: Watch | None = getattr(observer, "watch", None)
        current = CompileContext.current_compile_id()
        self.compile_id = None if current is None else str(current)
        self.is_split = False
        self.parts, self.start, self.seconds = 1, time.perf_counter(), 0.0
        self.graph, self._eager = graph, dict[torch.fx.Node, str]()

    def note_split(self, eager: dict[torch.fx.Node, str], parts: int) -> None:
        """Note what torch runs, with the reasons, and how many parts are left for XLA."""
        self._eager, self.parts, self.is_split = eager, parts, True

    @functools.cached_property
    def operators(self) -> list[Operator]:
        """The operators of the graph, in their order; sizes are left out."""
        calls = [node for node in self.graph().graph.nodes if node.op == "call_function"]
        return [
            Operator(
                str(operator_of(node)),
                source_line(node),
                _decomposed_from(node),
                self._eager.get(node),
            )
            for node in calls
            if node.target is not operator.getitem and (node in self._eager or not is_number(node))
        ]

    def __str__(self) -> str:
        eager = Counter(o.name for o in self.operators if o.eager)
        by_torch = f", {', '.join(eager)} in eager torch" if eager else ""
        parts = f" in {self.parts} parts" if self.parts != 1 else ""
        return f"{self.name}: {len(self.operators)} operators{parts}{by_torch}"

    @property
    def name(self) -> str:
        """As in "graph 3 (backward of Net, 0/1)"."""
        return f"graph {self.number} ({self.title}" + (
            f", {self.compile_id})" if self.compile_id else ")"
        )

    @property
    def title(self) -> str:
        """As in "backward of Net": what dumps, traces and the line of progress call it."""
        return titled(self.kind, self.subject)


def _decomposed_from(node: torch.fx.Node) -> str | None:
    original = node.meta.get("original_aten")
    return None if original is None or str(original) == str(node.target) else str(original)


@dataclasses.dataclass(frozen=True)
class BuiltExecutable:
    """A part of a graph was lowered and compiled.

    Attributes:
        graph: the graph.
        part: which of its parts, from 1.
        sizes: the values of the sizes that were left dynamic.
        reason: why now.
        program: the StableHLO module, and how calls bind to it.
        executable: None if there is nothing to compute.
        seconds: how long lowering took, and XLA.
    """

    graph: CompilationRecord
    part: int
    sizes: Mapping[str, Any]
    reason: str
    program: Program
    executable: Executable | None
    seconds: tuple[float, float]

    @functools.cached_property
    def cost(self) -> Cost:
        """The cost of a call, as XLA counts it."""
        return self.executable.cost() if self.executable else Cost()

    @property
    def stablehlo(self) -> str:
        """The StableHLO module, of a partitioned program what all devices together compute."""
        whole = self.program.whole
        return str((whole and whole.module) or self.program.module)

    @property
    def hlo(self) -> str:
        """The optimized HLO that XLA made of the module."""
        return self.executable.hlo_text() if self.executable else ""

    @property
    def name(self) -> str:
        """As in "graph 3 (inference of Net, 0/0), part 2 of 3, s0 = 16"."""
        part = f", part {self.part} of {self.graph.parts}" if self.graph.parts > 1 else ""
        return self.graph.name + part + "".join(f", {n} = {v}" for n, v in self.sizes.items())

    def __str__(self) -> str:
        lowering, xla = self.seconds
        cost = self.cost
        saved = self.executable is not None and self.executable.was_saved
        made = "loaded from the disk cache" if saved else "compiled"
        return (
            f"executable of {self.name}: {self.reason}; lowered in {lowering:.3f} s, {made} in "
            f"{xla:.3f} s; {cost.flops:,.0f} FLOP, {cost.bytes_accessed:,.0f} bytes accessed, "
            f"{cost.temporary_bytes:,} bytes of temporaries"
        )


@dataclasses.dataclass(frozen=True)
class NotBucketed:
    """A part of a graph with dynamic sizes is compiled for each tuple of them, and not for bounds.

    Attributes:
        graph: the graph.
        part: which of its parts, from 1.
        bounds: the bounds that it was to be compiled for; empty if there are none for it.
        reason: which operator decided so, and where it stands.
    """

    graph: CompilationRecord
    part: int
    bounds: Mapping[str, Any]
    reason: str

    def __str__(self) -> str:
        bounds = "".join(f", {n} = {v}" for n, v in self.bounds.items())
        return f"no bounds for the sizes of {self.graph.name}{bounds}: {self.reason}"


Event: TypeAlias = GraphBreak | Frame | CompilationRecord | BuiltExecutable | NotBucketed
Observer: TypeAlias = Callable[[Event], None]
Call: TypeAlias = Callable[[list[Any]], list[Any]]
Watch: TypeAlias = Callable[[BuiltExecutable, Call, Sequence[int]], Call]


def log_event(event: Event) -> None:
    """Write an event to the log "xla_dynamo", at level INFO."""
    if log.isEnabledFor(logging.INFO):
        log.info("%s", event)
