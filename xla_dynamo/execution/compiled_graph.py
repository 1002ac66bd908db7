"""A graph that is lowered, compiled and bound, once for each variant that its calls need."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.calls.calls import BoxedGraph, Call, bind
from xla_dynamo.calls.frozen_inputs import FrozenValues
from xla_dynamo.calls.named_calls import compiling
from xla_dynamo.calls.steps import Steps, steps_of
from xla_dynamo.errors import CompileError
from xla_dynamo.events import BuiltExecutable, CompilationRecord, NotBucketed
from xla_dynamo.execution.saved_programs import SavedPrograms
from xla_dynamo.execution.traced_strides import with_strides
from xla_dynamo.graphs.dynamic_sizes import NotBounded
from xla_dynamo.graphs.manual_regions import replicas_of
from xla_dynamo.graphs.marked import on_one_mesh
from xla_dynamo.graphs.node_notes import notes_of
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values, values_at
from xla_dynamo.graphs.source_graph import SourceGraph
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.lowerings.target import Target
from xla_dynamo.programs.lower import lower
from xla_dynamo.programs.lower_bounded import BoundedProgram
from xla_dynamo.programs.program import Program, Strides
from xla_dynamo.programs.targets import target_of
from xla_dynamo.runtime import marks, metrics, topology
from xla_dynamo.runtime.clients import placement_beside, placement_of, placement_over, tensors_on
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.progress import progress
from xla_dynamo.torch_private import unset_fake_temporarily
from xla_dynamo.variants.bounded_calls import BoundedCall
from xla_dynamo.variants.bucketed_calls import BucketedCalls
from xla_dynamo.variants.executable_cache import ExecutableCache
from xla_dynamo.variants.meanwhile import Meanwhile
from xla_dynamo.variants.variant_keys import VariantKey, exact_variant

log = logging.getLogger("xla_dynamo")


class CompiledGraph(BoxedGraph):
    """A graph and its executables.

    Attributes:
        source: the graph.
        request: what it is compiled with.

    A graph of static sizes is compiled at once. Any other has one table of variants, by what an
    executable is for (`VariantKey`): the sizes of a call or bounds of them, and the shardings that
    its inputs have. `Options.max_executables` of them are kept. It is not traced again.

    Several threads may call it. Lowering has a lock, since the executables of a graph share its
    nodes and frozen values; XLA compiles without it, and calls never take it.
    """

    def __init__(
        self,
        source: SourceGraph,
        request: Request,
        record: CompilationRecord,
        part: int = 1,
        saved: SavedPrograms | None = None,
    ) -> None:
        facts = source.facts
        self.source, self._record, self._part = source, record, part
        # A feeder that says where the program runs passes other tensors than the user's.
        self._may_be_marked = request.placement is None
        self._saved = saved or SavedPrograms(None, "")
        self._auto = None
        if self._may_be_marked and topology.chooses_shardings():
            from xla_dynamo.execution.auto_marks import auto_marks_for  # not before it is needed

            self._auto = auto_marks_for(source, request)
        is_marked = facts.has_marks or self._auto is not None or self._any_marks()
        asked = request
        if is_marked or facts.is_symbolic:
            request = dataclasses.replace(request, results_for_backward=frozenset())
        self.request = request
        self._sizes: dict[str, Any] | None = None
        self._sharding_of = _sharding_of_tensors(facts.device)
        freezes = request.options.freeze and request.keeps_inputs and not request.trains
        self._frozen = FrozenValues() if freezes else None
        self._lowering = threading.Lock()
        self._meanwhile = Meanwhile(source, request)
        limit = request.options.max_executables
        self._variants: ExecutableCache[Any] = ExecutableCache(limit, expected=(NotBounded,))
        self._buckets = None
        if facts.refusal and not is_marked and not freezes:
            self._tell_not_bucketed({}, facts.refusal)
        if facts.sizes is not None and not (is_marked or freezes or facts.offset_inputs):
            self._buckets = BucketedCalls(
                source,
                asked,
                self._variants,
                self._compile_bounded,
                self._tell_not_bucketed,
                self._meanwhile,
            )
        if self._waits(is_marked):
            super().__init__(
                lambda args: self._for(args, self._shardings(args))(args), name=record.title
            )
            return
        call, strides, steps = self._compile(
            lambda: static_values(source.gm), dict(request.shardings), "the graph is new", {}
        )
        # Else the graph is not needed any more, and is free to go: the first mark of a process lets
        # Dynamo compile everything anew.
        if self._may_be_marked and marks.were_ever_there():
            call = self._unless_sharded(call, strides)
        super().__init__(call, strides, steps, record.title)

    def _waits(self, is_marked: bool) -> bool:
        """Whether the graph is compiled when it is called, and not before."""
        if not self.source.facts.is_static or (is_marked and self._may_be_marked):
            return True
        # Of a forward that trains, AOTAutograd asks for the strides of results now.
        return not self.request.trains and self._meanwhile.ahead() is not None

    def _unless_sharded(self, call: Call, strides: Strides) -> Call:
        """The call for inputs without shardings, and what others need, which may come later."""

        def either(args: list[Any]) -> list[Any]:
            if shardings := self._shardings(args):
                return with_strides(self._for(args, shardings)(args), strides)
            return call(args)

        return either

    def _any_marks(self) -> bool:
        if self.source.facts.device.type == "xla":  # results are sharded without a mark
            return self._may_be_marked and marks.were_ever_there()
        return self._may_be_marked and marks.are_there()

    def _shardings(self, args: Sequence[Any]) -> dict[int, Sharding]:
        """The shardings that inputs are marked with, by number."""
        if not self._may_be_marked:
            return dict(self.request.shardings)
        if self._auto is not None:
            self._auto.mark(args)
        if not self._any_marks():
            return {}
        found = ((i, self._sharding_of(a)) for i, a in enumerate(args) if torch.is_tensor(a))
        return {i: sharding for i, sharding in found if sharding is not None}

    def _for(self, args: list[Any], shardings: dict[int, Sharding]) -> Call:
        """The callable for the sizes and the shardings of these inputs."""
        if self._buckets is not None and not shardings:
            call = self._buckets.find(args)
            if call is not None:
                return call
        key = exact_variant(self.source.facts, args, shardings)
        found = self._variants.find(key)
        if found is None:
            return self._new(key, args, shardings)
        return self._meanwhile.ahead() or found

    def _new(self, key: VariantKey, args: list[Any], shardings: dict[int, Sharding]) -> Call:
        """The callable for these sizes and shardings while their executable is not there yet."""
        stand_in = None if shardings else self._meanwhile.call()
        if stand_in is None:
            return self._variants.compile(key, lambda: self._compile_at(key, args, shardings))
        # A call empties its list, and a parameter must not live on for a compilation's sake.
        kept = [a.detach() if isinstance(a, torch.Tensor) else a for a in args]
        self._meanwhile.start(self._variants, key, lambda: self._compile_at(key, kept, shardings))
        return stand_in

    @property
    def _gm(self) -> torch.fx.GraphModule:
        return self.source.gm

    def _compile_at(self, key: VariantKey, args: list[Any], shardings: dict[int, Sharding]) -> Call:
        """Compile for the sizes of these inputs."""
        with self._lowering:
            sizes = self.source.facts.values_of_symbols(args)
            reason = self._why_now(key, sizes)
        call, *_ = self._compile(
            lambda: self._values_at(args), shardings, reason, sizes, None if shardings else key
        )
        return call

    def _values_at(self, args: Sequence[Any]) -> dict[torch.fx.Node, Any]:
        is_static = self.source.facts.is_static
        return static_values(self._gm) if is_static else values_at(self._gm, args)

    def _why_now(self, key: VariantKey, sizes: dict[str, Any]) -> str:
        """Why there is no executable for these sizes, which become the present ones."""
        before, self._sizes = self._sizes, sizes
        if self._variants.was_dropped(key):
            limit = self.request.options.max_executables
            return f"dropped before, since max_executables is {limit}"
        if before is None:
            return "the first call"
        changes = [
            f"{name} is {n}, not {before[name]}"
            for name, n in sizes.items()
            if before.get(name, n) != n
        ]
        return ", ".join(changes) or "new strides, storage offsets or shardings"

    # AOTAutograd calls us under its fake tensor mode; the graph's constants are real tensors.
    @unset_fake_temporarily()
    @compiling()
    def _compile(
        self,
        fake_values: Callable[[], dict[torch.fx.Node, Any]],
        shardings: dict[int, Sharding],
        reason: str,
        sizes: Mapping[str, Any],
        key: VariantKey | None = None,
    ) -> tuple[Call, Strides, Steps | None]:
        """The callable for these sizes, the strides chosen for results, and the steps of a call.

        `key` is what the program is known by among the saved ones, if it may be one.
        """
        request = self.request
        placement = request.placement or placement_of(self.source.facts.device)
        has_marks = shardings or self.source.facts.has_marks
        mesh, given = on_one_mesh(self._gm, shardings) if has_marks else (None, shardings)
        if mesh is not None:
            placement_of_mesh = placement_over(mesh, placement)
            if mesh.size() > 1:
                placement = placement_of_mesh
                request = dataclasses.replace(request, mesh=mesh, shardings=given)
        if replicas := replicas_of(self._gm):
            placement = placement_beside(replicas, placement)
        target = target_of(
            placement.platform,
            request.options,
            len(placement.devices),
            shares_memory=placement.shares_memory,
            own=len(placement.own),
            replicas=replicas,
        )
        with self._lowering, progress.showing(self._record.title, "lowering"):
            start = time.perf_counter()
            # Frozen values would be whole on one device.
            known = self._frozen.keys if self._frozen and mesh is None else None
            program = self._saved.find_or_make(
                key, Program, lambda: lower(self._gm, fake_values(), target, request, known)
            )
            lowering = time.perf_counter() - start
            frozen = self._compile_frozen(program, placement)
        return self._build(program, placement, sizes, reason, (lowering, frozen))

    def _build(
        self,
        program: Program,
        placement: Placement,
        sizes: Mapping[str, Any],
        reason: str,
        seconds: tuple[float, float],
        highs: Sequence[int] = (),
    ) -> tuple[Call, Strides, Steps | None]:
        """Compile a program, and bind it.

        `seconds` is how long it was lowered, and how long XLA compiled what computes frozen values;
        `highs` are the bounds that its sizes have.
        """
        lowering, frozen = seconds
        metrics.add_time("LoweringTime", lowering)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("StableHLO:\n%s", program.module)
        executable = self._executable(program, placement)
        if executable is not None and self.request.dump is not None:
            self.request.dump.add_executable(executable.hlo_text, f"{reason} {dict(sizes)}")
        compiling = frozen + (executable.compile_seconds if executable else 0.0)
        if executable is None or not executable.was_saved:
            metrics.increment("UncachedCompile")
        built = BuiltExecutable(
            self._record, self._part, sizes, reason, program, executable, (lowering, compiling)
        )
        self._record.tell(built)
        steps = None
        if executable is not None:
            executable.note(built.name, notes_of(self._gm) if self.source.is_read else {})
            keeps_inputs = self.request.keeps_inputs
            steps = steps_of(program, executable, keeps_inputs, self._frozen)
        call = bind(program, steps, placement, self._record.title)
        if self._record.watch is not None:
            call = self._record.watch(built, call, highs)
        return call, program.chosen_strides(), steps

    @unset_fake_temporarily()
    @compiling()
    def _compile_bounded(
        self,
        key: VariantKey,
        lower: Callable[[Target], BoundedProgram],
        sizes: Mapping[str, Any],
    ) -> BoundedCall:
        """The call of a program for these sizes, which `lower` makes for a target."""
        placement = placement_of(self.source.facts.device)
        target = target_of(placement.platform, self.request.options, bounded=True)
        with self._lowering, progress.showing(self._record.title, "lowering"):
            start = time.perf_counter()
            bounded = self._saved.find_or_make(key, BoundedProgram, lambda: lower(target))
            seconds = time.perf_counter() - start, 0.0
        assert key.bounds is not None
        highs = [bucket.high for bucket in key.bounds.buckets]
        call, *_ = self._build(bounded.program, placement, sizes, "a new bucket", seconds, highs)
        return BoundedCall(bounded, call, key.bounds, time.perf_counter() - start)

    def _tell_not_bucketed(self, bounds: Mapping[str, Any], reason: str) -> None:
        self._record.tell(NotBucketed(self._record, self._part, bounds, reason))

    def _compile_frozen(self, program: Program, placement: Placement) -> float:
        """Compile what computes the frozen values of a program; returns the seconds it took."""
        if self._frozen is None or program.frozen is None:
            return 0.0
        with self._naming_the_line():
            return self._frozen.compile(program.frozen, placement, self.request.options)

    def _executable(self, program: Program, placement: Placement) -> Executable | None:
        """The executable of a program; None if it computes nothing."""
        if not program.results:
            return None
        with self._naming_the_line():
            xla_options = self.request.options.xla_options
            tilings = program.result_tilings()
            with progress.showing(self._record.title, "XLA"):
                return Executable(
                    program.module, placement, xla_options, program.written_as, tilings
                )

    @contextlib.contextmanager
    def _naming_the_line(self) -> Iterator[None]:
        """Give a CompileError the user's line."""
        try:
            yield
        except CompileError as error:
            last = self._gm.graph.output_node().prev
            raise CompileError(f"{error}{describe(last)}") from error


def _sharding_of_tensors(device: torch.device) -> Callable[[torch.Tensor], Sharding | None]:
    """The function that looks up how the tensors of a device are sharded."""
    tensors = tensors_on(device.type)
    return marks.sharding_of if tensors is None else tensors.sharding_of
