"""The one road: an ATen FX graph to a callable that runs on PJRT."""

import collections
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.dynamo.aot_metadata import static_input_indices
from xla_dynamo.errors import CompileError
from xla_dynamo.events import BuiltExecutable, Graph, Observer, log_event
from xla_dynamo.execution.calls import BoxedGraph, Call, bind
from xla_dynamo.execution.frozen_inputs import FrozenValues
from xla_dynamo.execution.split_graph import PartitionedGraph
from xla_dynamo.graphs.fallback import TWO_PROGRAMS, partition
from xla_dynamo.graphs.fold_batch_norms import fold_batch_norms
from xla_dynamo.graphs.sizes import (
    is_symbolic,
    offset_inputs,
    size_key,
    static_values,
    symbol_values,
    values_at,
    write_out_products,
)
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.graphs.subgraphs import inline_subgraphs
from xla_dynamo.options import Options
from xla_dynamo.programs.lower import lower
from xla_dynamo.programs.program import Strides
from xla_dynamo.programs.saved_results import forget_saved, with_traced_strides
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.clients import pjrt_device_of
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.torch_private import unset_fake_temporarily

log = logging.getLogger("xla_dynamo")


class CompiledGraph(BoxedGraph):
    """A graph and its executables.

    A graph of static sizes is compiled at once. A symbolic one is compiled for each tuple of sizes
    that it is called with, without being traced again; `options.max_executables` of them are kept.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        example_inputs: Sequence[Any],
        options: Options,
        static_inputs: frozenset[int],
        keeps_inputs: bool,
        record: Graph,
        part: int = 1,
        saved: frozenset[int] = frozenset(),
    ) -> None:
        self._keeps_inputs = keeps_inputs
        self._saved = saved if not is_symbolic(gm) else frozenset()
        self._gm, self._options, self._static_inputs = gm, options, static_inputs
        self._record, self._part = record, part
        self._sizes: dict[str, Any] = {}
        self._dropped: set[int] = set()
        self._device = _device_of(gm, example_inputs)
        freezes = options.freeze and keeps_inputs and not record.trains
        self._frozen = FrozenValues() if freezes else None
        self._lock = threading.Lock()
        self._by_size: collections.OrderedDict[Any, Call] = collections.OrderedDict()
        self._offset_inputs = offset_inputs(gm)
        if is_symbolic(gm) or self._offset_inputs:
            super().__init__(lambda args: self._at_sizes(args)(args))
        else:
            super().__init__(*self._compile(static_values(gm), "the graph is new"))

    def _at_sizes(self, args: list[Any]) -> Call:
        offsets = [args[index].storage_offset() for index in self._offset_inputs]
        key = (*size_key(args), *offsets)
        with self._lock:
            program = self._by_size.get(key)
            if program is None:
                reason = self._why_now(key, symbol_values(self._gm, args))
                program, _ = self._compile(values_at(self._gm, args), reason)
                self._by_size[key] = program
                if len(self._by_size) > self._options.max_executables:
                    self._dropped.add(hash(self._by_size.popitem(last=False)[0]))
            else:
                self._by_size.move_to_end(key)
        return program

    def _why_now(self, key: Any, sizes: dict[str, Any]) -> str:
        """Why there is no executable for these sizes, which become the present ones."""
        before, self._sizes = self._sizes, sizes
        if hash(key) in self._dropped:
            return f"dropped before, since max_executables is {self._options.max_executables}"
        if not self._by_size:
            return "the first call"
        changes = [
            f"{name} is {n}, not {before[name]}"
            for name, n in sizes.items()
            if before.get(name, n) != n
        ]
        return ", ".join(changes) or "new strides or storage offsets"

    # AOTAutograd calls us under its fake tensor mode; the graph's constants are real tensors.
    @unset_fake_temporarily()
    def _compile(self, values: dict[torch.fx.Node, Any], reason: str) -> tuple[Call, Strides]:
        """An executable, and the strides that were chosen for results."""
        start = time.perf_counter()
        device = pjrt_device_of(self._device)
        program = lower(
            self._gm,
            values,
            device.platform,
            self._options,
            self._static_inputs,
            trains=self._record.trains,
            saved=self._saved,
            frozen=self._frozen.keys if self._frozen else None,
        )
        lowering = time.perf_counter() - start
        metrics.add_time("LoweringTime", lowering)
        metrics.increment("UncachedCompile")
        if log.isEnabledFor(logging.DEBUG):
            log.debug("StableHLO:\n%s", program.module)
        executable, seconds = None, 0.0
        try:
            if self._frozen is not None and program.frozen is not None:
                seconds += self._frozen.compile(program.frozen, device, self._options)
            if program.results:
                executable = Executable(program.module, device, self._options.xla_options)
                seconds += executable.compile_seconds
        except CompileError as error:
            last = self._gm.graph.output_node().prev
            raise CompileError(f"{error}{describe(last)}") from error
        self._record.tell(
            BuiltExecutable(
                self._record,
                self._part,
                self._sizes,
                reason,
                program,
                executable,
                (lowering, seconds),
            )
        )
        call = bind(
            program,
            executable,
            self._device,
            values,
            keeps_inputs=self._keeps_inputs,
            frozen=self._frozen,
        )
        return call, program.chosen_strides


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options | None = None,
    *,
    keeps_inputs: bool = False,
    kind: str = "graph",
    saved: frozenset[int] = frozenset(),
    observer: Observer = log_event,
) -> BoxedGraph:
    """Compile an ATen graph whose nodes carry fake values in `meta["val"]`.

    Args:
        gm: the graph: functional ATen overloads, with at most closing `copy_` into its inputs.
        example_inputs: what it is called with: tensors (fake ones will do), numbers, sizes.
        options: see `Options`.
        keeps_inputs: inputs that come again are imported once, and known by their address:
            parameters and buffers, which the current tracing context tells, at once.
        kind: what the graph is: "inference", "forward", "backward", "training step" or other.
        saved: results, by number, that only its backward reads: their strides may be chosen, and
            are told in `BoxedGraph.chosen_strides`.
        observer: is told what becomes of it: see `events`.

    Raises:
        UnsupportedOperator, UnsupportedDtype, LoweringError, CompileError: see `errors`.
    """
    options = options or Options()
    record = Graph(gm, kind, observer)
    inline_subgraphs(gm)
    write_out_products(gm)
    static = static_input_indices() if keeps_inputs else frozenset()
    if options.freeze and not record.trains and _device_of(gm, example_inputs).type == "cpu":
        fold_batch_norms(gm, static)
    cut = partition(gm, options)
    if cut is not None:
        by_torch = {n: why for n, why in cut.eager.items() if why != TWO_PROGRAMS}
        record.cut(by_torch, cut.number_of_parts())
    traced_strides = forget_saved(gm) if cut is not None else {}  # torch's part wants those
    observer(record)
    parts = itertools.count(1)

    def compile_part(gm: torch.fx.GraphModule, static_inputs: frozenset[int], fresh: bool) -> Call:
        keeps, part = keeps_inputs and not fresh, next(parts)
        return CompiledGraph(
            gm, _promised_inputs(gm), options, static_inputs, keeps, record, part
        ).call

    def compile_loop(gm: torch.fx.GraphModule) -> Call:
        fakes = _promised_inputs(gm)
        return compile_graph(gm, fakes, options, kind="steps of a loop", observer=observer).call

    compiled: BoxedGraph
    if cut is None:
        compiled = CompiledGraph(
            gm, example_inputs, options, static, keeps_inputs, record, saved=saved
        )
    else:
        compiled = PartitionedGraph(
            gm, cut, static, compile_part, compile_loop, options.max_executables
        )
        compiled.call = with_traced_strides(traced_strides, compiled.call)
    record.seconds = time.perf_counter() - record.start
    return compiled


def _promised_inputs(gm: torch.fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]


def _device_of(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> torch.device:
    """The device of the inputs, else of whatever the graph makes, else the CPU."""
    tensors = [a for a in example_inputs if isinstance(a, torch.Tensor)]
    tensors += [v for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    devices = [t.device for t in tensors]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
