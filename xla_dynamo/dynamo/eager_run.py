"""Run a graph of Dynamo's in eager torch, under autograd, as it ran before."""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
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
            return self.region(region).run(*inputs)
        return super().call_function(target, args, kwargs)

    def region(self, gm: torch.fx.GraphModule) -> "EagerRun":
        """What runs a checkpointed region."""
        return EagerRun(gm)


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


def present_modes(
    examples: Sequence[Any],
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context with the grad mode and the autocast that are on now, which Dynamo guards."""
    devices = {"cpu"} | {x.device.type for x in examples if isinstance(x, torch.Tensor)}
    casts = [
        (d, torch.get_autocast_dtype(d), torch.is_autocast_enabled(d))
        for d in sorted(devices)
        if torch.amp.is_autocast_available(d)
    ]
    gradients = torch.is_grad_enabled()

    @contextlib.contextmanager
    def modes() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(gradients))
            for device, dtype, enabled in casts:
                if enabled or torch.is_autocast_enabled(device):
                    stack.enter_context(torch.autocast(device, dtype, enabled))
            yield

    return modes


@contextlib.contextmanager
def drawing_from(state: torch.Tensor | None, draws: bool) -> Iterator[None]:
    """Draw from a state of torch's generator, and leave the generator as it was."""
    if not draws:
        yield
        return
    with torch.random.fork_rng():
        if state is not None:
            torch.set_rng_state(state)
        yield
