"""What a training step reads and writes beside the inputs of its forward.

It is collected anew at each call from where it lives: the optimizer's `state` and `param_groups`,
the gradients, the scaler, the average of the weights. Whoever replaces a tensor there, as
`load_state_dict` does, is heard.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.hyperparameters import Name, hyperparameters
from xla_dynamo.loss_scaling import scaler_tensors
from xla_dynamo.weight_averaging import averaged_tensors

Tensor: TypeAlias = torch.Tensor
# What a tensor is to the step: ("state", 3, "exp_avg") and the like.
Key: TypeAlias = tuple[Any, ...]


@dataclasses.dataclass(eq=False)
class Recipe:
    """What makes a training step of a model's forward: see `train_step`.

    Attributes:
        updates: whether the optimizer acts in the coming step, or gradients are only added up.
        varying: the numbers among the hyperparameters that are inputs of the step; all others are
            constants in it.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    accumulation_steps: int = 1
    clip_gradients: Callable[[list[Tensor]], Any] | None = None
    grad_scaler: torch.amp.GradScaler | None = None
    average: torch.optim.swa_utils.AveragedModel | None = None
    options: Mapping[str, Any] | None = None
    updates: bool = True
    varying: set[Name] = dataclasses.field(default_factory=set)

    @property
    def accumulates(self) -> bool:
        """Whether gradients outlive a call."""
        return self.accumulation_steps > 1


def owned_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The parameters that an optimizer has."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def used_parameters(recipe: Recipe, args: Sequence[Any]) -> dict[Tensor, int]:
    """The parameters that the optimizer has and the forward uses, and which inputs they are."""
    places = {id(a): i for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
    params = owned_parameters(recipe.optimizer)
    return {p: places[id(p)] for p in params if id(p) in places and p.requires_grad}


def tensors_beside(
    recipe: Recipe, params: Sequence[Tensor], args: Sequence[Any]
) -> dict[Key, Tensor]:
    """The tensors that a step reads or writes beside the inputs of its forward."""
    optimizer, scaler = recipe.optimizer, recipe.grad_scaler
    found: dict[Key, Tensor] = {
        ("hyperparameter", name): value
        for name, value in hyperparameters(optimizer).items()
        if isinstance(value, torch.Tensor)
    }
    for index, p in enumerate(params):
        for name, value in optimizer.state.get(p, {}).items():
            if isinstance(value, torch.Tensor):
                found["state", index, name] = value
        if recipe.accumulates and p.grad is not None:
            found["gradient", index] = p.grad
    if scaler is not None and scaler.is_enabled() and params:
        found["scale",], found["growth",] = scaler_tensors(scaler, params[0].device)
    if recipe.average is not None and recipe.updates:
        known = {id(a) for a in args}
        pairs = averaged_tensors(recipe.average, recipe.model)
        found |= {("average", j): a for j, (a, _) in enumerate(pairs)}
        found |= {("weight", j): w for j, (_, w) in enumerate(pairs) if id(w) not in known}
        found["averages",] = recipe.average.n_averaged
    return found


def allocate_gradients(params: Sequence[Tensor]) -> None:
    """Give zero gradients to parameters that have none."""
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p, memory_format=torch.preserve_format)
