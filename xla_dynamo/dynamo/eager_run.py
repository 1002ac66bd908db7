"""Run a graph of Dynamo's in eager torch, under autograd."""

import itertools
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

Node: TypeAlias = torch.fx.Node
_checkpoint = torch.ops.higher_order.tag_activation_checkpoint


class EagerRun(torch.fx.Interpreter):
    """Runs Dynamo's graph, and checkpointed regions as if they were not."""

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a node; a checkpointed region like the nodes around it."""
        if target is _checkpoint:
            region, *inputs = args
            return EagerRun(region).run(*inputs)
        return super().call_function(target, args, kwargs)


def run_eagerly(gm: torch.fx.GraphModule, args: Sequence[Any]) -> Sequence[Any]:
    """What the graph returns for these inputs, which it may change."""
    if gm.graph.find_nodes(op="call_function", target=_checkpoint):
        return EagerRun(gm).run(*args)
    return gm.forward(*args)


def users_function(gm: torch.fx.GraphModule) -> Node | None:
    """A call of a user's `torch.autograd.Function` in a graph, or in one of its bodies.

    Its backward must not be differentiated: Dynamo has traced it with gradients off, so that what
    its `no_grad()` regions would leave out is not known.
    """
    op = torch.ops.higher_order.autograd_function_apply
    parts = (part for part in gm.modules() if isinstance(part, torch.fx.GraphModule))
    found = (part.graph.find_nodes(op="call_function", target=op) for part in parts)
    return next(itertools.chain.from_iterable(found), None)
