"""Take the effects out of a graph: the operators without results, which act on something else.

A program of bounds pads its inputs and cuts its results. What an effect is given is cut likewise
if it is a result of the graph; then torch calls the operator when the program is over.
"""

import operator
from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.nodes import is_plain_effect, with_effects, writes_input
from xla_dynamo.programs.program import Effect, Output

Node: TypeAlias = torch.fx.Node


def take_effects(gm: torch.fx.GraphModule) -> list[Effect]:
    """Take the effects out of a graph; what they are given comes behind its results.

    Returns none, and leaves the graph as it is, if one of its effects has results, or if the graph
    changes inputs: those may not change before an effect that may raise an error.
    """
    nodes = gm.graph.find_nodes(op="call_function", target=with_effects)
    if not all(map(_is_simple, nodes)) or any(map(writes_input, gm.graph.nodes)):
        return []
    number = {node: i for i, node in enumerate(gm.graph.find_nodes(op="placeholder"))}
    output = gm.graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    added: dict[Node, Output] = {}

    def given(value: Any) -> Output:
        if not isinstance(value, torch.fx.Node):
            return Output(number=value)
        if value in number:
            return Output(input=number[value])
        if value not in added:
            added[value] = Output(len(results))
            results.append(value)
        return added[value]

    effects = [
        Effect(n.args[1], tuple(map(given, n.args[2:])), {k: given(a) for k, a in n.kwargs.items()})
        for n in nodes
    ]
    tokens = {user for n in nodes for user in n.users}
    output.args = ([None if r in tokens else r for r in results],)
    for node in reversed(nodes):
        for user in list(node.users):
            gm.graph.erase_node(user)
        gm.graph.erase_node(node)
    return effects


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
