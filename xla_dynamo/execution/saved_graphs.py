"""Programs of whole graphs in the disk cache, which a later process runs without a trace of them.

An entry has the program as `programs.storage` writes it. It says all that a call does, where
AOTAutograd adds nothing: in inference, without changes of inputs and without views among results.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.calls.calls import BoxedGraph, bind
from xla_dynamo.calls.frozen_inputs import FrozenValues
from xla_dynamo.calls.steps import steps_of
from xla_dynamo.events import BuiltExecutable, CompilationRecord, Event, Observer
from xla_dynamo.execution.saved_programs import is_whole, read_entry
from xla_dynamo.options import Options
from xla_dynamo.programs.program import Program
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.torch_private import DisableAutocast, is_any_autocast_enabled
from xla_dynamo.variants.meanwhile import is_ahead

log = logging.getLogger("xla_dynamo")


class Watch:
    """An observer that saves the program of a graph, if one program is all of it."""

    def __init__(self, observer: Observer) -> None:
        """Pass all events on to another observer."""
        self._observer, self._is_open = observer, True
        self._records: list[CompilationRecord] = []
        self._programs: list[Program] = []
        self._save: Callable[[Program], None] | None = None
        # AOTAutograd adds nothing, and the program is the same for each call of the graph: who
        # compiles for it says so.
        self.is_plain = False
        # Such a graph whose sizes are dynamic, and how many tokens of effects it begins with.
        self.dynamic_graph: BoxedGraph | None = None
        self.tokens = 0

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if self._is_open and isinstance(event, CompilationRecord):
            self._records.append(event)
        elif self._is_open and isinstance(event, BuiltExecutable):
            self._programs.append(event.program)
        elif isinstance(event, BuiltExecutable) and (save := self._save) is not None:
            self._save = None
            if is_whole(event.program):
                save(event.program)
        self._observer(event)

    def close(self, save: Callable[[Program], None]) -> None:
        """The graph is compiled: save the program that is all of it, if one is.

        Of a graph that is compiled ahead, the program is made at a call, and saved then.
        """
        records, programs = self._records, self._programs
        self._records, self._programs, self._is_open = [], [], False
        if not self.is_plain or self.dynamic_graph is not None:
            return
        if len(records) != 1 or records[0].is_split:
            return
        if len(programs) == 1 and is_whole(programs[0]):
            save(programs[0])
        elif not programs and is_ahead():
            self._save = save


def load(
    folder: CacheFolder, key: str, options: Options, placement: Placement, name: str
) -> Callable[..., Any] | None:
    """The callable of the graph with this key, named for profilers; None if it is not there."""
    program = read_entry(folder, key)
    if not isinstance(program, Program):
        return None
    executable, frozen = None, None
    if program.reads_frozen:
        frozen = FrozenValues()
        frozen.compile(program.frozen, placement, options)
    if program.results:
        executable = Executable(program.module, placement, options.xla_options, program.written_as)
    if executable is not None:
        executable.note(name, {})
    steps = steps_of(program, executable, True, frozen) if executable is not None else None
    graph = BoxedGraph(bind(program, steps, placement, name), program.chosen_strides(), steps)
    metrics.increment("PersistentCacheProgramHit")
    if executable is None or not executable.was_saved:
        metrics.increment("UncachedCompile")
    found = executable is not None and executable.was_saved
    seconds = executable.compile_seconds if executable is not None else 0.0
    log.info(
        "program %s (%s) loaded from the disk cache; its executable was %s in %.3f s",
        key[:12],
        name,
        "loaded from it, too," if found else "compiled",
        seconds,
    )
    return as_aot_autograd_calls(graph)


def as_aot_autograd_calls(graph: BoxedGraph) -> Callable[..., Any]:
    """A graph called as AOTAutograd calls one of inference: without gradients and autocast."""
    call, disables_autocast = graph.call, is_any_autocast_enabled()

    def without_gradients(*args: Any) -> Sequence[Any]:
        if not torch.is_grad_enabled():
            return call(list(args))
        with torch.no_grad():
            return call(list(args))

    def without_autocast(*args: Any) -> Sequence[Any]:
        with DisableAutocast():
            return without_gradients(*args)

    return without_autocast if disables_autocast else without_gradients
