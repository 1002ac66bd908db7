"""The graph that would compute tensors: as ATen, and as StableHLO. Nothing is compiled or run."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from jax.extend.mlir import ir

from xla_dynamo.decompositions.table import decompositions
from xla_dynamo.decompositions.whole_resampling import resampling_is_whole
from xla_dynamo.graphs.preparation import prepare
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import static_values
from xla_dynamo.lazy import contents, memory
from xla_dynamo.lazy.clean_state import clean_state
from xla_dynamo.lazy.contents import Value, cell_of, live_cells, shows_all
from xla_dynamo.lazy.draws import packed
from xla_dynamo.lazy.slices import Slice, cut, narrowed
from xla_dynamo.lazy.trace import examples, trace
from xla_dynamo.options import Options
from xla_dynamo.programs.lower_exported import lower_exported
from xla_dynamo.programs.program import NegativeZero
from xla_dynamo.programs.targets import target_of
from xla_dynamo.torch_private import FakeTensorMode, aot_autograd
from xla_dynamo.torch_threads import tracing_here

Tensor: TypeAlias = torch.Tensor
Node: TypeAlias = torch.fx.Node


@dataclasses.dataclass
class PendingGraph:
    """The graph that would compute some values.

    Attributes:
        gm: functional ATen, whose nodes have fake values in `meta["val"]`. Its inputs are values
            that are there; behind them may be one vector with the changing numbers, and one matrix
            with the keys of what draws.
        values: the values that are inputs, in the order of the first placeholders.
        others: the elements of the further inputs; those of `module` have one more, the number
            -0.0, where a sum must not be contracted.
        key: equal for graphs that are alike, in one process.
    """

    gm: torch.fx.GraphModule
    values: list[Value]
    others: list[Tensor]
    key: Any

    @functools.cached_property
    def module(self) -> ir.Module:
        """The graph as StableHLO: each input an argument, each output a result.

        Raises:
            UnsupportedOperator, LoweringError: see `errors`.
        """
        prepare(self.gm)
        options = Options(fallback="error", libraries=())
        target = target_of(memory.placement().platform, options)
        request = Request(options, "lazy tensors")
        with clean_state():
            program = lower_exported(self.gm, static_values(self.gm), target, request)
        self.others += [torch.tensor(-0.0) for _ in program.of(NegativeZero)]
        return program.module


def pending_graph(tensors: Sequence[Tensor] | None = None) -> PendingGraph:
    """The graph that would compute tensors of the 'xla' device.

    Tensors that are computed already are inputs and outputs of the graph.

    Args:
        tensors: the outputs, in their order; None for all tensors that are pending.
    """
    with contents.lock:
        values = _pending() if tensors is None else [_whole(tensor) for tensor in tensors]
        roots = list({id(v): v for v in values if v.record is not None}.values())
        part = cut(roots) if roots else None
        part = None if part is None else narrowed(part, roots)
    device = memory.placement().torch_device
    with clean_state():
        if part is None:
            gm, given, others, key = _nothing(), [], [], ()
        else:
            gm, given, others, key = _aten(part, device), part.inputs, _others(part), part.key
        known = _with_outputs(gm, values, roots, given, device)
    return PendingGraph(gm, known, others, (key, tuple(v.geometry for v in known)))


def _pending() -> list[Value]:
    return [v for cell in live_cells() if (v := cell.value).record is not None]


def _whole(tensor: Tensor) -> Value:
    """The value that a tensor shows, which of a view is a copy's."""
    if not shows_all(tensor):
        tensor = tensor.detach().clone()
    return cell_of(tensor).value


def _others(part: Slice) -> list[Tensor]:
    numbers = [torch.tensor(part.numbers, dtype=torch.float64)] if part.numbers else []
    return [*numbers, *([packed(part.keys)] if part.keys else [])]


def _aten(part: Slice, device: torch.device) -> torch.fx.GraphModule:
    """The functional ATen graph of a slice."""
    found: list[torch.fx.GraphModule] = []

    def take(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        found.append(gm)
        return gm.forward

    backend = aot_autograd(
        fw_compiler=take, inference_compiler=take, decompositions=decompositions(Options().rng)
    )
    with resampling_is_whole(), tracing_here():
        backend(trace(part, device), examples(part, device))
    return found[0]


def _nothing() -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    graph.output(())
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _with_outputs(
    gm: torch.fx.GraphModule,
    values: Sequence[Value],
    roots: Sequence[Value],
    inputs: Sequence[Value],
    device: torch.device,
) -> list[Value]:
    """Let a graph of the roots return all values; returns those that are inputs now."""
    output = gm.graph.output_node()
    made: Any = output.args[0]
    nodes = {id(v): node for v, node in zip(roots, made, strict=True)}
    placeholders = gm.graph.find_nodes(op="placeholder")
    nodes |= {id(v): node for v, node in zip(inputs, placeholders, strict=False)}
    known = list(inputs)
    for value in values:
        if id(value) not in nodes:
            behind = placeholders[len(known) - 1] if known else None
            nodes[id(value)] = _placeholder(gm.graph, behind, value, device)
            known.append(value)
            placeholders = gm.graph.find_nodes(op="placeholder")
    output.args = (tuple(nodes[id(value)] for value in values),)
    gm.recompile()
    return known


def _placeholder(
    graph: torch.fx.Graph, behind: Node | None, value: Value, device: torch.device
) -> Node:
    """One more input of a graph, behind another or as the first."""
    first = next(iter(graph.nodes))
    place = graph.inserting_before(first) if behind is None else graph.inserting_after(behind)
    with place:
        node = graph.placeholder(f"computed_{len(graph.nodes)}")
    dtype, size, stride, _ = value.geometry
    with FakeTensorMode():
        node.meta["val"] = torch.empty_strided(size, stride, dtype=dtype, device=device)
    return node
