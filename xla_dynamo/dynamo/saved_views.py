"""What a backward graph reads views of: saved as it is, and not by the views.

A layer multiplies by its transposed weight, and autograd saves the transpose. Such a view would be
made anew at each call of the forward, and imported anew at each call of the backward. A parameter
costs neither: it is there, and its buffer is known by its address. Likewise for query, key and
value that one product has computed: its result is one tensor in place of three.
"""

import collections
from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch

from xla_dynamo.graphs.nodes import replaces_input, writes_input
from xla_dynamo.graphs.output_views import Memories, is_view

Node: TypeAlias = torch.fx.Node
GraphModule: TypeAlias = torch.fx.GraphModule
# In the meta of an input that is a parameter or a buffer, and does not change. The partitioner
# hands the meta on to the inputs of the two graphs that it makes.
_FIXED = "xla_dynamo_fixed"


def fixed_inputs(joint: GraphModule, static: Collection[int]) -> list[Node]:
    """Find the parameters and buffers among the inputs of a joint graph that it does not change.

    They are marked, for `fixed_indices`. `static` has the numbers of all parameters and buffers.
    """
    written = {
        node.args[0] for node in joint.graph.nodes if writes_input(node) or replaces_input(node)
    }
    inputs = joint.graph.find_nodes(op="placeholder")
    found = [inputs[index] for index in static if inputs[index] not in written]
    for node in found:
        node.meta[_FIXED] = True
    return found


def viewed_in_parts(forward: Collection[Node]) -> list[Node]:
    """Find the values, no inputs, of which the backward reads several views, together all of them.

    Args:
        forward: the nodes of the forward, in order.
    """
    memories, before = Memories(), set(forward)
    parts: dict[Node, int] = collections.Counter()
    for node in forward:
        whole = memories.of(node)
        if whole is node or not _readers(node, before):
            continue
        parts[whole] += _elements(node) or 0
    return [
        node
        for node, elements in parts.items()
        if node.op == "call_function"
        and "recompute" not in node.meta
        and _elements(node) == elements
    ]


def _elements(node: Node) -> int | None:
    """How many elements a node's value has, if it is a tensor and all calls have as many."""
    value = node.meta.get("val")
    elements = value.numel() if isinstance(value, torch.Tensor) else None
    return elements if isinstance(elements, int) else None


def save_whole(joint: GraphModule, whole: Collection[Node], forward: Sequence[Node]) -> None:
    """Let the backward make the views that it reads of some values.

    Args:
        joint: a joint graph.
        whole: the values, such as inputs that are parameters or buffers and do not change.
        forward: the nodes of the forward, in order.
    """
    graph = joint.graph
    behind = list(graph.nodes)[len(forward)]
    before = set(forward)
    # By each value, and each view of one, what the backward reads in its place.
    own = {node: node for node in whole}
    copies = []
    for node in forward:
        if not _can_be_made_again(node, own):
            continue
        readers = _readers(node, before)
        with graph.inserting_before(behind):
            copy = graph.node_copy(node, own.__getitem__)
        copy.meta["partitioner_tag"] = "is_backward"
        for reader in readers:
            reader.replace_input_with(node, copy)
        own[node] = copy
        copies.append(copy)
    for copy in reversed(copies):
        if not copy.users:
            graph.erase_node(copy)


def _readers(node: Node, before: Collection[Node]) -> list[Node]:
    """What reads a node of the forward, whose nodes `before` are, behind it."""
    return [user for user in node.users if user not in before and user.op != "output"]


def _can_be_made_again(node: Node, own: Collection[Node]) -> bool:
    """Whether a node is a view of one of these, and reads nothing else.

    What a checkpointed region computes, torch's partitioner computes again by itself.
    """
    if "recompute" in node.meta or not is_view(node):
        return False
    return len(node.all_input_nodes) == 1 and node.args[0] in own


def fixed_indices(backward: GraphModule) -> frozenset[int]:
    """Which inputs of a backward graph are `fixed_inputs` of the joint graph that it is from."""
    inputs: Sequence[Node] = backward.graph.find_nodes(op="placeholder")
    return frozenset(i for i, node in enumerate(inputs) if _FIXED in node.meta)
