"""Marks whose result nobody reads: what comes after them reads the marked value all the same.

PyTorch/XLA's programs write `mark_sharding(x, …)` as a statement of its own and go on with `x`.
"""

import operator
from typing import Any, TypeAlias

import torch

from xla_dynamo.graphs.marked import is_mark
from xla_dynamo.torch_private import is_function_wrapper, storage_id

Node: TypeAlias = torch.fx.Node
_WRITERS = {getattr(operator, name) for name in dir(operator) if name.endswith("item")}
_WRITERS |= {getattr(operator, f"i{n}") for n in dir(operator) if hasattr(operator, f"i{n}")}
_WRITERS.discard(operator.getitem)


def read_marked_values(gm: torch.fx.GraphModule) -> None:
    """Let what reads a tensor after its mark, in Dynamo's graph, read the mark's result.

    A tensor whose memory the graph writes into after its mark is left as it is: the result of a
    mark is memory of its own.
    """
    order = {node: number for number, node in enumerate(gm.graph.nodes)}
    marks = [node for node in order if is_mark(node)]
    if not marks:
        return
    writes = [(number, _written(node)) for node, number in order.items() if _writes(node)]
    for mark in marks:
        x = mark.args[0]
        memory = _memory(x)
        written = (n for n, at in writes if at is None or memory is None or at == memory)
        if not mark.users and order[mark] > max(written, default=-1):
            x.replace_all_uses_with(mark, lambda user, m=mark: order[user] > order[m])
    gm.recompile()


def _written(node: Node) -> int | None:
    """The memory that a node writes into; None where that is not known."""
    return None if "out" in node.kwargs or not node.args else _memory(node.args[0])


def _memory(value: Any) -> int | None:
    """What tells the memory of a value of Dynamo's graph from other memory."""
    example = value.meta.get("example_value") if isinstance(value, torch.fx.Node) else None
    if not isinstance(example, torch.Tensor) or is_function_wrapper(example):
        return None
    return storage_id(example)


def _writes(node: Node) -> bool:
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        if node.target in _WRITERS or "out" in node.kwargs:
            return True
        name = getattr(node.target, "__name__", "")
        if vars(operator).get(name) is node.target:  # and_ and or_ write nothing
            return False
    else:
        return False
    return name.endswith("_") and not name.endswith("__")
