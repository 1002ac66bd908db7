"""What a node of an ATen graph is, beside an operator of the table."""

from collections.abc import Iterator
from typing import TypeAlias

import torch

Node: TypeAlias = torch.fx.Node
aten = torch.ops.aten
with_effects = torch.ops.higher_order.with_effects


def is_plain_effect(node: Node) -> bool:
    """Whether a `with_effects` node runs an operator that gives nothing: a check, a print."""
    op = node.args[1]
    return isinstance(op, torch._ops.OpOverload) and not op._schema.returns


def through_storage(gm: torch.fx.GraphModule) -> Iterator[Node]:
    """The nodes that address their operand's storage: as_strided and its scatter."""
    for op in (aten.as_strided.default, aten.as_strided_scatter.default):
        yield from gm.graph.find_nodes(op="call_function", target=op)


def is_number(node: Node) -> bool:
    """Whether a node is a size or another number, and not a tensor."""
    value = node.meta.get("val")
    kinds = int | float | bool | complex | torch.SymInt | torch.SymFloat | torch.SymBool
    return isinstance(value, kinds)


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors among a node's results."""
    value = node.meta.get("val")
    for part in value if isinstance(value, tuple | list) else (value,):
        if isinstance(part, torch.Tensor):
            yield part


def writes_input(node: Node) -> bool:
    """Whether a node is one of the closing `copy_` into an input."""
    if node.target is not aten.copy_.default:
        return False
    target = node.args[0]
    return isinstance(target, torch.fx.Node) and target.op == "placeholder"


def replaces_input(node: Node) -> bool:
    """Whether a node is one of the closing `set_` that give an input other memory."""
    return node.target is aten.set_.source_Tensor and node.args[0].op == "placeholder"  # type: ignore[union-attr]
