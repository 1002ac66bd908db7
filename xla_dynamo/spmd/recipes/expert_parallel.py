"""Expert parallel: each device has some of the experts of a mixture, and is sent their tokens.

This is GShard's algorithm (arXiv:2006.16668). A product with a mask dispatches tokens to slots of
experts, and XLA can shard it. Two marks change what shards the slots, from the batch to the
experts and back, and each of these changes is an all-to-all.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import UNCONSTRAINED, Mesh
from xla_dynamo.spmd.recipes.activations import mark_activation
from xla_dynamo.spmd.recipes.axes import checked_axes
from xla_dynamo.spmd.recipes.parameters import shard_parameter
from xla_dynamo.spmd.recipes.styles import ParallelStyle


class ExpertParallel(ParallelStyle):
    """Shard the experts of a module whose parameters stack them: [experts, ...] each.

    For `parallelize_module`, of a module that `mixture_of_experts` calls.
    """

    def apply(self, module: torch.nn.Module, name: str, mesh: Mesh, axis: str) -> None:
        """Mark each parameter on its first dimension."""
        parameters = dict(module.named_parameters())
        counts = {p.shape[0] if p.dim() else None for p in parameters.values()}
        if len(counts) != 1 or None in counts:
            raise ShardingError(
                "ExpertParallel shards the first dimension of stacked experts, and the parameters "
                f"of {name} have the shapes {[tuple(p.shape) for p in parameters.values()]}"
            )
        for key, p in parameters.items():
            shard_parameter(p, mesh, axis, 0, f"{name}.{key}")


def mixture_of_experts(
    x: torch.Tensor,
    router_logits: torch.Tensor,
    experts: Callable[[torch.Tensor], torch.Tensor],
    *,
    top_k: int = 2,
    capacity_factor: float | None = None,
    mesh: Mesh | None = None,
    axis: str = "expert",
    batch_axes: str | Sequence[str] | None = None,
) -> torch.Tensor:
    """Send each token to the experts with the largest logits, and sum what they make of it.

    The weights of a sum are the softmax of the logits that were chosen.

    Args:
        x: [batch, sequence, features], of floats.
        router_logits: [batch, sequence, experts].
        experts: computes [experts, slots, features], of any number of features in the result, of
            [experts, slots, features], with parameters that stack the experts (`ExpertParallel`).
        top_k: how many experts a token is sent to.
        capacity_factor: how many slots an expert has for each sequence, as a multiple of the number
            that is filled if all experts get as many tokens. Tokens without a slot, later ones and
            second choices first, get nothing of this expert. None gives slots for all tokens, which
            needs the most memory and time.
        mesh: the devices; None shards nothing.
        axis: the axis of the mesh that shards experts.
        batch_axes: the axes that shard the batch, among them `axis`; all, unless they are given.

    Returns:
        [batch, sequence, features of the experts' result], of the dtype of x. The same values
        whether they are sharded or not.

    Raises:
        ShardingError: the mesh has no such axes.
    """
    shard = _Slots(mesh, axis, batch_axes)
    weights, chosen = _choose(router_logits, top_k)
    capacity = _capacity(chosen, top_k, capacity_factor)
    dispatch, combine = _masks(weights, chosen, capacity)
    # e: expert, b: batch, s: sequence, c: slot, d and f: features.
    slots = shard.by_batch(torch.einsum("bsec,bsd->ebcd", dispatch.to(x.dtype), x))
    slots = shard.by_expert(slots)
    made = experts(slots.flatten(1, 2)).unflatten(1, slots.shape[1:3])
    made = shard.by_batch(shard.by_expert(made))
    return torch.einsum("bsec,ebcf->bsf", combine.to(made.dtype), made).to(x.dtype)


class _Slots:
    """How the slots, [experts, batch, slots of a sequence, features], are sharded."""

    def __init__(self, mesh: Mesh | None, axis: str, batch_axes: str | Sequence[str] | None):
        self.mesh, self.axes = mesh, (axis,)
        self.batch_axes: tuple[str, ...] = ()
        self.rest: tuple[str, ...] = ()
        if mesh is not None:
            checked_axes(mesh, axis)
            self.batch_axes = checked_axes(mesh, batch_axes or mesh.axis_names)
            self.rest = tuple(name for name in self.batch_axes if name != axis)

    def by_batch(self, x: torch.Tensor) -> torch.Tensor:
        return self._sharded(x, (None, self.batch_axes))

    def by_expert(self, x: torch.Tensor) -> torch.Tensor:
        return self._sharded(x, (self.axes, self.rest or None))

    def _sharded(self, x: torch.Tensor, spec: tuple[Any, Any]) -> torch.Tensor:
        if self.mesh is None:
            return x
        return mark_activation(x, self.mesh, (*spec, None, UNCONSTRAINED))


def _choose(logits: torch.Tensor, top_k: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The weights of the chosen experts, [batch, sequence], and 0 or 1 for each expert.

    Maxima one after another, which XLA partitions; it would gather what it sorts.
    """
    left, values, chosen = logits.float(), [], []
    numbers = torch.arange(logits.shape[-1], device=logits.device)
    for _ in range(top_k):
        value, index = left.max(-1)
        one_hot = index.unsqueeze(-1) == numbers  # torch's one_hot has a check that XLA cannot run
        left = left.masked_fill(one_hot, -torch.inf)
        values.append(value)
        chosen.append(one_hot)
    return list(torch.stack(values, -1).softmax(-1).unbind(-1)), chosen


def _capacity(chosen: list[torch.Tensor], top_k: int, factor: float | None) -> int:
    _, sequence, experts = chosen[0].shape
    if factor is None:
        return sequence
    return min(sequence, max(1, int(-(-sequence * top_k * factor // experts))))


def _masks(
    weights: list[torch.Tensor], chosen: list[torch.Tensor], capacity: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which token has which slot of which expert, and with what weight: [b, s, experts, slots]."""
    dispatch: Any = 0
    combine: Any = 0
    filled: Any = 0  # of each sequence and expert, by earlier choices: [b, 1, experts]
    slots = torch.arange(capacity, device=chosen[0].device)
    for weight, one_hot in zip(weights, chosen, strict=True):
        count = one_hot.long()
        position = count.cumsum(1) - count + filled  # [b, s, experts]
        filled = filled + count.sum(1, keepdim=True)
        has_slot = (one_hot & (position < capacity)).unsqueeze(-1)
        mask = (has_slot & (position.unsqueeze(-1) == slots)).float()
        dispatch = dispatch + mask
        combine = combine + mask * weight[..., None, None]
    return dispatch, combine
