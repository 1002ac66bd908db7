"""Marks whose result nobody reads: what comes after them reads the marked value all the same.

PyTorch/XLA's programs write `mark_sharding(x, …)` as a statement of its own and go on with `x`.
"""

import operator
from typing import TypeAlias

import torch

from xla_dynamo.graphs.marked import is_mark

Node: TypeAlias = torch.fx.Node
_WRITERS = {getattr(operator, name) for name in dir(operator) if name.endswith("item")}
_WRITERS |= {getattr(operator, f"i{n}") for n in dir(operator) if hasattr(operator, f"i{n}")}
_WRITERS.discard(operator.getitem)


def read_marked_values(gm: torch.fx.GraphModule) -> None:
    """Let what reads a tensor after its mark, in Dynamo's graph, read the mark's result.

    A graph that writes into tensors afterwards is left as it is: the result of a mark is memory of
    its own.
    """
    order = {node: number for number, node in enumerate(gm.graph.nodes)}
    marks = [node for node in order if is_mark(node)]
    last = max((number for node, number in order.items() if _writes(node)), default=-1)
    for mark in marks:
        if not mark.users and order[mark] > last:
            mark.args[0].replace_all_uses_with(mark, lambda user, m=mark: order[user] > order[m])
    if marks:
        gm.recompile()


def _writes(node: Node) -> bool:
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        if node.target in _WRITERS or "out" in node.kwargs:
            return True
        name = getattr(node.target, "__name__", "")
    else:
        return False
    return name.endswith("_") and not name.endswith("__")
