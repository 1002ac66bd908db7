"""Run a graph with operators that XLA cannot run: compiled parts, with eager operators between.

The schedule itself is an FX graph (`SplitGraph.schedule`), whose generated code frees every
value after its last use.
"""

import dataclasses
import logging
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.calls.calls import BoxedGraph, Call
from xla_dynamo.errors import ExecutionError
from xla_dynamo.execution.stacked_loops import CompileLoop, StackedLoop
from xla_dynamo.graphs.fallback import (
    DRAWN_BY_TORCH,
    TWO_PROGRAMS,
    Schedule,
    inputs_of,
    outputs_of,
)
from xla_dynamo.graphs.nodes import operator_of
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_lines import describe, source_line
from xla_dynamo.lowerings.builders.strides import row_major_order
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import metrics

log = logging.getLogger("xla_dynamo")
Node: TypeAlias = torch.fx.Node


class _Logged:
    def __init__(self) -> None:
        self.keys: set[tuple[str, str]] = set()  # operators and lines


_logged = kept(_Logged)


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a graph that XLA is to compile.

    Attributes:
        gm: its graph.
        static_inputs: those of its inputs, by number, that are parameters and buffers.
        views_of_inputs: those of its results that eager gives as views of the graph's inputs.
        takes_new_tensors: whether an input is made during the call: such tensors come only once.
    """

    gm: torch.fx.GraphModule
    static_inputs: frozenset[int]
    views_of_inputs: frozenset[int]
    takes_new_tensors: bool


CompilePart = Callable[[Part], Call]


class SplitGraph(BoxedGraph):
    """A graph that runs partly on PJRT and partly in eager torch.

    Attributes:
        schedule: the FX module that calls parts and operators in turn.
        parts: the FX graphs that are compiled, in the order they run.
        eager: the nodes that torch runs, with the reason.
    """

    def __init__(
        self,
        gm: torch.fx.GraphModule,
        schedule: Schedule,
        request: Request,
        compile_part: CompilePart,
        compile_loop: CompileLoop,
    ) -> None:
        self._gm, self._compile_part = gm, compile_part
        self._compile_loop = compile_loop
        self._max_executables = request.options.max_executables
        self.eager, self._times = schedule.eager, schedule.times
        self.parts: list[torch.fx.GraphModule] = []
        placeholders = gm.graph.find_nodes(op="placeholder")
        results: Any = gm.graph.output_node().args[0]
        self._static = {placeholders[index] for index in request.static_inputs}
        self._views = {results[index] for index in request.views_of_inputs}
        graph = torch.fx.Graph()
        args = graph.placeholder("args")
        env: dict[Node, Node] = {
            node: graph.call_function(operator.getitem, (args, index))
            for index, node in enumerate(placeholders)
        }
        graph.call_method("clear", (args,))  # so that inputs can be freed early
        for node in gm.graph.find_nodes(op="get_attr"):
            env[node] = graph.node_copy(node)
        for time in range(-1, max(schedule.times.values()) + 1):
            nodes = schedule.at(time)
            if time % 2:
                for node in nodes:
                    env[node] = self._on_host(graph, node, env)
            elif nodes:
                self._part(graph, nodes, env)
        for node in gm.graph.output_node().all_input_nodes:
            if self._made_eagerly(node):  # perhaps saved for a backward graph
                env[node] = graph.call_function(_as_promised(node, is_result=True), (env[node],))
        graph.output(torch.fx.map_arg(results, env.__getitem__))
        self.schedule = torch.fx.GraphModule(gm, graph)
        run = self.schedule.forward

        def call(args: list[Any]) -> list[Any]:
            with torch.no_grad():
                return list(run(args))

        super().__init__(call)

    def _on_host(self, graph: torch.fx.Graph, node: Node, env: dict[Node, Node]) -> Node:
        copy = graph.node_copy(node, env.__getitem__)
        if node in self.eager:
            copy.target = self._runner(node)
        return copy

    def _runner(self, node: Node) -> Callable[..., Any]:
        """The function to call for a node that no part may have."""
        if self.eager[node] == TWO_PROGRAMS:
            loop = StackedLoop(node, self._compile_loop, self._max_executables)
            return lambda *args: loop(*args)  # FX names what it calls
        if self.eager[node] != DRAWN_BY_TORCH:
            _log_once(node, self.eager[node])
        return _eagerly(node)

    def _part(self, graph: torch.fx.Graph, nodes: list[Node], env: dict[Node, Node]) -> None:
        inputs, outputs = inputs_of(nodes), outputs_of(nodes)
        gm = self._part_graph(nodes, inputs, outputs)
        self.parts.append(gm)
        part = Part(
            gm,
            frozenset(i for i, node in enumerate(inputs) if node in self._static),
            frozenset(i for i, node in enumerate(outputs) if node in self._views),
            any(node.op != "placeholder" for node in inputs),
        )
        call = self._compile_part(part)

        # FX names what it calls, and not every callable has a name.
        def run_part(args: list[Any]) -> list[Any]:
            return call(args)

        args = [env[node] for node in inputs]
        for index, node in enumerate(inputs):
            if self._made_eagerly(node):
                args[index] = env[node] = graph.call_function(_as_promised(node), (args[index],))
        called = graph.call_function(run_part, (args,))
        for index, node in enumerate(outputs):
            env[node] = graph.call_function(operator.getitem, (called, index))

    def _made_eagerly(self, node: Node) -> bool:
        made = node.op != "placeholder" and self._times[node] % 2
        return bool(made) and isinstance(node.meta.get("val"), torch.Tensor)

    def _part_graph(
        self, nodes: list[Node], inputs: Sequence[Node], outputs: Sequence[Node]
    ) -> torch.fx.GraphModule:
        graph, inner = torch.fx.Graph(), {}
        for node in inputs:
            inner[node] = graph.placeholder(node.name)
            inner[node].meta = node.meta
        constants = [n for node in nodes for n in node.all_input_nodes if n.op == "get_attr"]
        for node in (*dict.fromkeys(constants), *nodes):
            inner[node] = graph.node_copy(node, inner.__getitem__)
        graph.output(tuple(inner[node] for node in outputs))
        return torch.fx.GraphModule(self._gm, graph)


def _eagerly(node: Node) -> Callable[..., Any]:
    """The operator of a node, counted as PyTorch/XLA counts what falls back: aten::nonzero.

    What it raises has a note with its name and the user's line.
    """
    op: Any = node.target
    counter = operator_of(node).name().split(".")[0]

    def run(*args: Any, **kwargs: Any) -> Any:
        metrics.increment(counter)
        try:
            return op(*args, **kwargs)
        except Exception as error:
            error.add_note(f"raised by {operator_of(node)}{describe(node)}")
            raise

    return run


def _as_promised(node: Node, *, is_result: bool = False) -> Callable[[torch.Tensor], torch.Tensor]:
    """Check that an eager operator's result is what the compiled part was built for.

    The check returns the tensor, with the strides of its fake value. It raises ExecutionError where
    the fake value has another dtype or shape, unless the tensor is a result of the graph. Symbolic
    sizes are not checked.
    """
    fake = node.meta["val"]
    shape = [None if isinstance(n, torch.SymInt) else n for n in fake.shape]
    static = None not in shape and not any(isinstance(n, torch.SymInt) for n in fake.stride())
    # Tensors with gaps or repetitions are copied on their way into a part, whatever their strides.
    stride = fake.stride() if static and row_major_order(fake.shape, fake.stride()) else None

    def check(value: torch.Tensor) -> torch.Tensor:
        sizes = zip(value.shape, shape, strict=False)
        alike = value.dim() == len(shape) and all(p is None or n == p for n, p in sizes)
        if value.dtype != fake.dtype or not alike:
            if is_result:
                return value
            raise ExecutionError(
                f"{node.target} gave {value.dtype} of shape {tuple(value.shape)} where its fake "
                f"function promised {fake.dtype} of shape {tuple(fake.shape)}{describe(node)}"
            )
        if stride is None or value.stride() == stride:
            return value
        return value.new_empty_strided(value.shape, stride).copy_(value)

    return check


def _log_once(node: Node, reason: str) -> None:
    name = str(operator_of(node))
    key = (name, str(source_line(node)))
    if key not in _logged.keys:
        _logged.keys.add(key)
        log.warning("%s runs eagerly: %s%s", name, reason, describe(node))
