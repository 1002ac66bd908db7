"""`torch.ops.xla.scan`: one operator that runs a graph for each row of tensors, as one loop.

The lazy device records it like every other operator. In the program it is torch's own `scan`, so
the program has the body once, however many rows there are.
"""

import copy
import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo import torch_private
from xla_dynamo.graphs.nodes import is_random
from xla_dynamo.lazy.draws import KEY_BYTES, Keyed
from xla_dynamo.lazy.trace import WRITTEN_AS
from xla_dynamo.torch_private import pytree

Tensors = Sequence[torch.Tensor]
_KEY_WORDS = KEY_BYTES // 8

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "scan(Tensor[] carry, Tensor[] rows, Tensor[] fixed, str body, bool reverse, Tensor? keys) "
    "-> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """What a loop does with each row.

    Attributes:
        name: equal for graphs that are equal, so that their loops are one program.
        graph: takes the carried values, a row of each tensor, and what is the same for all rows.
            Returns the next carried values, and behind them a row of each result.
        carries: how many values are carried.
        made: the sizes and the dtype of all that it returns.
        draws: whether it draws random numbers.
    """

    name: str
    graph: torch.fx.GraphModule
    carries: int
    made: tuple[tuple[torch.Size, torch.dtype], ...]
    draws: bool
    _placed: dict[torch.device, torch.fx.GraphModule] = dataclasses.field(default_factory=dict)

    def on(self, device: torch.device) -> torch.fx.GraphModule:
        """The graph, with a device for the lazy one."""
        if device in self._placed:
            return self._placed[device]
        graph = self._placed[device] = copy.deepcopy(self.graph)
        for module in _modules(graph):
            for node in module.graph.nodes:
                place = functools.partial(_placed, device)
                node.args = torch.fx.node.map_aggregate(node.args, place)
                node.kwargs = torch.fx.node.map_aggregate(node.kwargs, place)
            module.recompile()
        return graph


_bodies: dict[str, Body] = {}


def body_of(graph: torch.fx.GraphModule, carries: int) -> Body:
    """The body of a loop: a graph of ATen operators, traced with fake tensors, without constants.

    Raises:
        ValueError: it returns something that is no tensor.
    """
    parts = []
    draws = False
    for module in _modules(graph):
        given = [n.meta.get("val") for n in module.graph.find_nodes(op="placeholder")]
        forms = [(tuple(t.shape), str(t.dtype)) for t in given if isinstance(t, torch.Tensor)]
        parts.append((module.code, forms))
        draws |= any(map(is_random, module.graph.nodes))
    text = repr((parts, carries, torch.get_default_dtype()))
    name = hashlib.sha256(text.encode()).hexdigest()[:32]
    if name not in _bodies:
        values = [n.meta["val"] for n in graph.graph.output_node().args[0]]
        made = tuple((value.shape, value.dtype) for value in values)
        _bodies[name] = Body(name, graph, carries, made, draws)
    return _bodies[name]


def run_loop(
    body: Body, carry: Tensors, rows: Tensors, fixed: Tensors, reverse: bool = False
) -> list[torch.Tensor]:
    """Run a body for each row, the last one first if `reverse`.

    Returns:
        The last carried values, and the results of all rows in the rows' order.
    """
    keys = None
    if body.draws:  # a key for each row, from the generator of the device
        size = (rows[0].shape[0], _KEY_WORDS)
        keys = torch.randint(2**62, size, dtype=torch.int64, device=rows[0].device)
    return torch.ops.xla.scan(list(carry), list(rows), list(fixed), body.name, reverse, keys)


def _modules(graph: torch.fx.GraphModule) -> list[torch.fx.GraphModule]:
    """A graph and those of the branches and loops in it."""
    return [m for m in graph.modules() if isinstance(m, torch.fx.GraphModule)]


def _placed(device: torch.device, a: Any) -> Any:
    return device if isinstance(a, torch.device) and a.type == "xla" else a


def _in_program(
    carry: Tensors, rows: Tensors, fixed: Tensors, body: str, reverse: bool, keys: Any
) -> Tensors:
    """The loop in a program, where each row draws from its own key."""
    # Torch's loop refuses inputs that share memory; a copy is nothing to XLA.
    carry, rows, fixed = ([t.clone() for t in every] for every in (carry, rows, fixed))
    return _looped(carry, rows, fixed, _bodies[body], reverse, keys)


def _in_eager(
    carry: Tensors, rows: Tensors, fixed: Tensors, body: str, reverse: bool, keys: Any
) -> Tensors:
    """The loop on tensors that torch computes, which draws from torch's generator."""
    return _looped(carry, rows, fixed, _bodies[body], reverse, None)


def _looped(
    carry: Tensors, rows: Tensors, fixed: Tensors, body: Body, reverse: bool, keys: Any
) -> Tensors:
    count = body.carries
    if not rows[0].shape[0]:
        made = _made(rows[0], body)
        return [*(c.clone() for c in carry), *made[count:]]
    graph = body.on(rows[0].device)
    given = list(rows) if keys is None else [keys, *rows]
    if reverse:
        given = [row.flip(0) for row in given]

    def step(*args: torch.Tensor) -> Any:
        if keys is None:
            return graph(*args)
        with Keyed(args[count].view(torch.uint8)):
            return graph(*args[:count], *args[count + 1 :])

    results = torch_private.scan_op(step, list(carry), given, tuple(fixed))
    last, made = results[:count], results[count:]
    return [*last, *(one.flip(0) if reverse else one for one in made)]


def _made(row: torch.Tensor, body: Body) -> list[torch.Tensor]:
    """Empty results for the rows that there are."""
    ahead = [()] * body.carries + [(row.shape[0],)] * (len(body.made) - body.carries)
    return [
        torch.empty((*first, *size), dtype=dtype, device=row.device)
        for first, (size, dtype) in zip(ahead, body.made, strict=True)
    ]


def _fakes(
    carry: Tensors, rows: Tensors, fixed: Tensors, body: str, reverse: bool, keys: Any
) -> Tensors:
    return _made(rows[0], _bodies[body])


torch.library.impl("xla::scan", "CompositeExplicitAutograd", _in_eager, lib=_library)
torch.library.register_fake("xla::scan", _fakes, lib=_library)
WRITTEN_AS[torch.ops.xla.scan.default] = _in_program


def map_tensors(function: Any, tree: Any) -> Any:
    """A tree with a function of each of its tensors."""
    return pytree.tree_map_only(torch.Tensor, function, tree)
