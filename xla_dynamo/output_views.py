"""Graph outputs that are views of one memory in eager, and must be again.

Inside the program a view is a value like any other. When two outputs share memory (`y` and
`y.view(-1)`), the program returns what they are views of, once, and both are made from it.
"""

import collections
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.lowerings.strides import row_major_order

Node: TypeAlias = torch.fx.Node


def _viewed(node: Node) -> Node | None:
    """What a node is a view of, if it is one."""
    if node.op != "call_function":
        return None
    if not isinstance(node.target, torch._ops.OpOverload):
        # One of several views: a piece of split() or unbind().
        source = node.args[0] if node.target is operator.getitem else None
        return _viewed(source) if isinstance(source, torch.fx.Node) else None
    returns = node.target._schema.returns
    alias = returns[0].alias_info if returns else None
    first = node.args[0] if node.args else None
    is_view = alias is not None and not alias.is_write and isinstance(first, torch.fx.Node)
    return first if is_view else None


def memory_of(node: Node) -> Node:
    """The node whose memory a node is a view of: itself, if it is none."""
    for view in views_under(node):
        node = _viewed(view) or view
    return node


def views_under(node: Node) -> Iterator[Node]:
    """A view, what it is a view of, and so on: all that are views themselves."""
    while (viewed := _viewed(node)) is not None:
        yield node
        node = viewed


def _same_elements(view: torch.Tensor, root: torch.Tensor) -> bool:
    """Whether a view reads its root's elements as they are: no bit view, no lazy conjugate."""
    lazy = (view.is_conj(), view.is_neg()) == (root.is_conj(), root.is_neg())
    return view.dtype is root.dtype and lazy


def outputs_of_one_memory(outputs: Sequence[Any], values: Mapping[Node, Any]) -> dict[Node, Node]:
    """Map each output that shares memory with another to the node whose memory it is.

    Outputs that share the memory of an input are AOTAutograd's to make, and left alone.
    """
    groups: dict[Node, set[Node]] = collections.defaultdict(set)
    for output in outputs:
        if isinstance(output, torch.fx.Node) and isinstance(values.get(output), torch.Tensor):
            groups[memory_of(output)].add(output)
    shared: dict[Node, Node] = {}
    for root, members in groups.items():
        value = values.get(root)
        if len(members) < 2 or root.op == "placeholder" or not isinstance(value, torch.Tensor):
            continue
        if (
            all(_same_elements(values[m], value) for m in members)
            and row_major_order(value.shape, value.stride()) is not None
        ):
            shared.update(dict.fromkeys(members, root))
    return shared
