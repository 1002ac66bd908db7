"""A graph that is compiled when calls need it, and what has to be known of it before."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.graphs.call_sizes import CallSizes
from xla_dynamo.graphs.dynamic_sizes import DynamicSizes, NotBounded
from xla_dynamo.graphs.manual_regions import replicas_of
from xla_dynamo.graphs.marked import specs_in
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.sizes import (
    has_symbols,
    is_symbolic,
    number_at,
    offset_inputs,
    symbols_of,
)
from xla_dynamo.graphs.source_lines import describe
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.options import Options

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True, slots=True)
class GraphFacts:
    """What the calls of a graph need to know of it, whether it is compiled or not.

    Attributes:
        device: that of its tensors.
        is_symbolic: whether a size, a stride or a number among its inputs is dynamic.
        offset_inputs: the inputs, by number, whose storage offset matters.
        has_marks: whether it has marks of shardings.
        symbols: of each dynamic size and number the name, and the input and the dimension that have
            it; None for an input that is the number.
        sizes: its dynamic dimensions, if it may be compiled for bounds of them.
        refusal: why it may not be, though some are dynamic and bounds are wanted.
    """

    device: torch.device
    is_symbolic: bool = False
    offset_inputs: tuple[int, ...] = ()
    has_marks: bool = False
    symbols: tuple[tuple[str, int, int | None], ...] = ()
    sizes: CallSizes | None = None
    refusal: str = ""

    @property
    def is_static(self) -> bool:
        """Whether one program serves all calls without shardings."""
        return not self.is_symbolic and not self.offset_inputs

    def values_of_symbols(self, args: Sequence[Any]) -> dict[str, Any]:
        """The values of the dynamic sizes and numbers in a call, by name."""
        return {name: number_at(args, index, dim) for name, index, dim in self.symbols}


class SourceGraph:
    """An ATen graph that is there, or is read from a file when it is needed.

    Attributes:
        facts: what has to be known of it before.
    """

    def __init__(self, load: Callable[[], torch.fx.GraphModule], facts: GraphFacts) -> None:
        """Take what reads the graph, and its facts."""
        self._load, self.facts = load, facts

    @functools.cached_property
    def gm(self) -> torch.fx.GraphModule:
        """The graph, read if it was not."""
        return self._load()

    @property
    def is_read(self) -> bool:
        """Whether the graph is there."""
        return "gm" in vars(self)

    @functools.cached_property
    def sizes(self) -> DynamicSizes:
        """Its dynamic sizes, for lowering it.

        Raises:
            NotBounded: some size is no polynomial of symbols that the inputs tell.
        """
        return DynamicSizes(self.gm)


def source_of(gm: torch.fx.GraphModule, device: torch.device, request: Request) -> SourceGraph:
    """The source of a graph that is there."""
    is_dynamic = is_symbolic(gm)
    if is_dynamic:  # it is kept for the sizes to come
        _drop_erased_nodes(gm)
    facts = GraphFacts(
        device, is_dynamic, tuple(offset_inputs(gm)), any(True for _ in specs_in(gm))
    )
    source = SourceGraph(lambda: gm, facts)
    if facts.is_symbolic:
        facts = dataclasses.replace(facts, symbols=symbols_of(gm))
        if request.options.buckets != "exact":
            try:
                if replicas_of(gm):
                    raise NotBounded("processes exchange values of the sizes that they have")
                if device.type != "cpu" or request.placement is not None:
                    raise NotBounded("buckets are for the tensors of the CPU")
                _refuse_slow(gm, request.options)
                facts = dataclasses.replace(facts, sizes=source.sizes.calls)
            except NotBounded as error:
                facts = dataclasses.replace(facts, refusal=str(error))
        source.facts = facts
    return source


def _drop_erased_nodes(gm: torch.fx.GraphModule) -> None:
    """Make the graph anew of the nodes that it has.

    A graph of torch.fx remembers each node that it ever named. Of a decomposed model nine in ten
    are gone, and Python's garbage collector would go through them for as long as the graph lives.
    """
    graph = torch.fx.Graph()
    value, old = graph.graph_copy(gm.graph, {}, return_output_node=True)
    graph.output(value).meta = old.meta
    gm.graph = graph


def _refuse_slow(gm: torch.fx.GraphModule, options: Options) -> None:
    """Raise NotBounded if a graph is much faster at sizes that are known, unless bounds are given.

    Bounded programs call no libraries. XLA's own convolutions on the CPU take several times as long
    as oneDNN's, so a program for each size pays after few calls.
    """
    if options.buckets != "auto" or "onednn" not in {*options.libraries} & libraries_of("cpu"):
        return
    for node in gm.graph.find_nodes(op="call_function", target=aten.convolution.default):
        if has_symbols(node.meta.get("val")):
            raise NotBounded(f"convolutions by oneDNN are for sizes that are known{describe(node)}")
