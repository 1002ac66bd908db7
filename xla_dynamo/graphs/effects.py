"""Take the effects out of a graph: the operators without results, which act on something else.

A program of bounds pads its inputs and cuts its results. What an effect is given is cut likewise
if it is a result of the graph; then torch calls the operator when the program is over.
"""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.nodes import is_plain_effect, with_effects, writes_input

Node: TypeAlias = torch.fx.Node


@dataclasses.dataclass(frozen=True, slots=True)
class _Input:
    """The input of this number."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Result:
    """The result of this number."""

    index: int


@dataclasses.dataclass(frozen=True, slots=True)
class Effects:
    """The effects of a graph, in their order.

    Attributes:
        calls: the operator of each, its arguments and its keyword arguments, where inputs and
            results of the graph are given by number.
        results: how many results the graph had before.
        inputs: the inputs, by number, that are given to an effect.
    """

    calls: Sequence[tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]]
    results: int
    inputs: frozenset[int]

    def behind(self, call: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """The call of the graph as it was, by the call of the one without effects."""

        def run(args: list[Any]) -> list[Any]:
            inputs = {index: args[index] for index in self.inputs}
            results = call(args)

            def value(given: Any) -> Any:
                if isinstance(given, _Input):
                    return inputs[given.index]
                return results[given.index] if isinstance(given, _Result) else given

            for op, given, named in self.calls:
                op(*map(value, given), **{name: value(a) for name, a in named.items()})
            del results[self.results :]
            return results

        return run


def take_effects(gm: torch.fx.GraphModule) -> Effects | None:
    """Make a graph's effects calls behind it, and what they are given results of the graph.

    Returns None, and leaves the graph as it is, if it has none, if one of them has results, or if
    the graph changes inputs: those may not change before an effect that may raise an error.
    """
    nodes = gm.graph.find_nodes(op="call_function", target=with_effects)
    if not nodes or not all(map(_is_simple, nodes)) or any(map(writes_input, gm.graph.nodes)):
        return None
    number = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    output = gm.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    count = len(results)
    places: dict[Node, _Result] = {}

    def given(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return value
        if value in number:
            return _Input(number[value])
        if value not in places:
            places[value] = _Result(len(results))
            results.append(value)
        return places[value]

    calls = [
        (n.args[1], [given(a) for a in n.args[2:]], {k: given(a) for k, a in n.kwargs.items()})
        for n in nodes
    ]
    tokens = {user for n in nodes for user in n.users if user.target is operator.getitem}
    output.args = ([None if r in tokens else r for r in results],)
    for node in reversed(nodes):
        for user in list(node.users):
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
    gm.recompile()
    used = [*(a for _, given, named in calls for a in (*given, *named.values()))]
    inputs = frozenset(a.index for a in used if isinstance(a, _Input))
    return Effects(calls, count, inputs)  # type: ignore[arg-type]


def _is_simple(node: Node) -> bool:
    """Whether an effect gives nothing but a token for others, and gets no nodes in lists."""
    tokens = list(node.users)
    readers = [reader for token in tokens for reader in token.users]
    only_orders = all(token.target is operator.getitem for token in tokens) and all(
        reader.op == "output" or reader.target is with_effects for reader in readers
    )
    given = [*node.args[2:], *node.kwargs.values()]
    return is_plain_effect(node) and only_orders and not any(map(_has_nodes_inside, given))


def _has_nodes_inside(value: Any) -> bool:
    found: list[Node] = []
    torch.fx.map_arg(value, found.append)
    return bool(found) and not isinstance(value, torch.fx.Node)
