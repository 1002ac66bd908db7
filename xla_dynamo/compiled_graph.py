"""The one road: an ATen FX graph to a callable that runs on PJRT."""

import collections
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from xla_dynamo.calls import BoxedGraph, Call, bind
from xla_dynamo.errors import CompileError
from xla_dynamo.lower import lower
from xla_dynamo.options import Options
from xla_dynamo.partition import partition
from xla_dynamo.partitioned_graph import PartitionedGraph
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.clients import pjrt_device_of
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.sizes import is_symbolic, offset_inputs, size_key, static_values, values_at
from xla_dynamo.source_lines import describe
from xla_dynamo.subgraphs import inline_subgraphs

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
    ) -> None:
        self._keeps_inputs = keeps_inputs
        self._gm, self._options, self._static_inputs = gm, options, static_inputs
        self._device = _device_of(gm, example_inputs)
        self._lock = threading.Lock()
        self._by_size: collections.OrderedDict[Any, Call] = collections.OrderedDict()
        self._offset_inputs = offset_inputs(gm)
        if is_symbolic(gm) or self._offset_inputs:
            super().__init__(lambda args: self._at_sizes(args)(args))
        else:
            super().__init__(self._compile(static_values(gm)))

    def _at_sizes(self, args: list[Any]) -> Call:
        offsets = [args[index].storage_offset() for index in self._offset_inputs]
        key = (*size_key(args), *offsets)
        with self._lock:
            program = self._by_size.get(key)
            if program is None:
                program = self._by_size[key] = self._compile(values_at(self._gm, args))
                if len(self._by_size) > self._options.max_executables:
                    self._by_size.popitem(last=False)
            else:
                self._by_size.move_to_end(key)
        return program

    # AOTAutograd calls us under its fake tensor mode; the graph's constants are real tensors.
    @unset_fake_temporarily()
    def _compile(self, values: dict[torch.fx.Node, Any]) -> Call:
        start = time.perf_counter()
        device = pjrt_device_of(self._device)
        program = lower(self._gm, values, device.platform, self._options, self._static_inputs)
        metrics.add_time("LoweringTime", time.perf_counter() - start)
        metrics.increment("UncachedCompile")
        if log.isEnabledFor(logging.DEBUG):
            log.debug("StableHLO:\n%s", program.module)
        executable = None
        if program.results:
            try:
                executable = Executable(program.module, device, self._options.xla_options)
            except CompileError as error:
                last = self._gm.graph.output_node().prev
                raise CompileError(f"{error}{describe(last)}") from error
        return bind(program, executable, self._device, values, keeps_inputs=self._keeps_inputs)


def compile_graph(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Options | None = None,
    *,
    keeps_inputs: bool = False,
) -> BoxedGraph:
    """Compile an ATen graph whose nodes carry fake values in `meta["val"]`.

    Args:
        gm: the graph: functional ATen overloads, with at most closing `copy_` into its inputs.
        example_inputs: what it is called with: tensors (fake ones will do), numbers, sizes.
        options: see `Options`.
        keeps_inputs: inputs that come again are imported once, and known by their address:
            parameters and buffers, which the current tracing context tells, at once.

    Raises:
        UnsupportedOperator, UnsupportedDtype, LoweringError, CompileError: see `errors`.
    """
    options = options or Options()
    inline_subgraphs(gm)
    static = _static_input_indices() if keeps_inputs else frozenset()
    parts = partition(gm, options)
    if parts is None:
        return CompiledGraph(gm, example_inputs, options, static, keeps_inputs=keeps_inputs)

    def compile_part(gm: torch.fx.GraphModule, static_inputs: frozenset[int], fresh: bool) -> Call:
        inputs = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
        return CompiledGraph(gm, inputs, options, static_inputs, keeps_inputs and not fresh).call

    return PartitionedGraph(gm, parts, static, compile_part)


def _static_input_indices() -> frozenset[int]:
    """Which inputs of the graph AOTAutograd is compiling are parameters and buffers."""
    tracing = torch._guards.TracingContext.try_get()
    metadata = getattr(tracing, "fw_metadata", None)
    return frozenset(getattr(metadata, "static_input_indices", None) or ())


def _device_of(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> torch.device:
    """The device of the inputs, else of whatever the graph makes, else the CPU."""
    tensors = [a for a in example_inputs if isinstance(a, torch.Tensor)]
    tensors += [v for n in gm.graph.nodes if isinstance(v := n.meta.get("val"), torch.Tensor)]
    devices = [t.device for t in tensors]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))
