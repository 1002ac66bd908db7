"""Find graph outputs that are views of one memory in eager, so that they are so again.

Inside the program a view is a value like any other. When two outputs share memory (`y` and
`y.view(-1)`), the program returns their base once, and both views are made from it.
"""

import collections
import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.lowerings.builders.strides import row_major_order
from xla_dynamo.torch_private import OpOverload, schema

Node: TypeAlias = torch.fx.Node


def _viewed(node: Node) -> Node | None:
    """The node that a node is a view of, if it is a view."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:  # one of several views: a piece of split() or unbind()
        source = node.args[0]
        return source if isinstance(source, torch.fx.Node) and _viewed(source) else None
    if not isinstance(node.target, OpOverload):
        return None
    returns = schema(node.target).returns
    alias = returns[0].alias_info if returns else None
    first = node.args[0] if node.args else None
    is_view = alias is not None and not alias.is_write and isinstance(first, torch.fx.Node)
    return first if is_view else None


def is_view(node: Node) -> bool:
    """Whether a node is a view of its first argument."""
    return _viewed(node) is not None


class Memories:
    """Whose memory the nodes of a graph are in, for a graph that does not change meanwhile.

    What is found is kept, since many outputs may be views of one another.
    """

    def __init__(self) -> None:
        """Begin with nothing looked up."""
        self._found: dict[Node, Node] = {}

    def of(self, node: Node) -> Node:
        """The node whose memory a node is a view of: itself, if it is none."""
        passed = []
        while (memory := self._found.get(node)) is None:
            passed.append(node)
            below = _viewed(node)
            if below is None:
                memory = node
                break
            node = below
        self._found.update(dict.fromkeys(passed, memory))
        return memory


def views_under(node: Node) -> Iterator[Node]:
    """A view, what it is a view of, and so on: all that are views themselves."""
    while (viewed := _viewed(node)) is not None:
        yield node
        node = viewed


@dataclasses.dataclass(frozen=True, slots=True)
class ViewStep:
    """A view that torch makes: the operator, and what follows its first argument."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def view_steps(node: Node, env: Mapping[Node, Any]) -> tuple[ViewStep, ...]:
    """How a view is made again from a tensor in the place of `Memories.of(node)`.

    `env` has the numbers that the views are called with.
    """
    steps = []
    for view in reversed(list(views_under(node))):
        args = torch.fx.map_arg(view.args[1:], env.__getitem__)
        kwargs = torch.fx.map_arg(view.kwargs, env.__getitem__)
        steps.append(ViewStep(view.target, args, kwargs))
    return tuple(steps)


def _same_elements(view: torch.Tensor, root: torch.Tensor) -> bool:
    """Whether a view reads its root's elements as they are: no bit view, no lazy conjugate."""
    lazy = (view.is_conj(), view.is_neg()) == (root.is_conj(), root.is_neg())
    return view.dtype is root.dtype and lazy


def outputs_of_one_memory(
    outputs: Sequence[Any], values: Mapping[Node, Any], memories: Memories
) -> dict[Node, Node]:
    """Map each output that shares memory with another to the node whose memory it is.

    Views of inputs are not among them: see `view_steps`.
    """
    groups: dict[Node, set[Node]] = collections.defaultdict(set)
    for output in outputs:
        if isinstance(output, torch.fx.Node) and isinstance(values.get(output), torch.Tensor):
            groups[memories.of(output)].add(output)
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
