"""Collect the tensors that a training step reads and writes beside the inputs of its forward.

Each call collects them from where they live: the optimizer's `state` and `param_groups`, the
gradients, the scaler, the average of the weights. So a call sees tensors that were replaced there,
as `load_state_dict` does.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.events import Observer, log_event
from xla_dynamo.torch_private import scaler_tensors
from xla_dynamo.training.hyperparameters import Name, hyperparameters
from xla_dynamo.training.optimizer_trace import owned_parameters
from xla_dynamo.training.weight_averaging import averaged_tensors

Tensor: TypeAlias = torch.Tensor
# What a tensor is to the step: ("state", 3, "exp_avg") and the like.
Key: TypeAlias = tuple[Any, ...]


@dataclasses.dataclass(eq=False)
class StepSettings:
    """What makes a training step of a model's forward: see `train_step`.

    Attributes:
        updates: whether the optimizer acts in the coming step, or gradients are only added up.
        varying: the numbers among the hyperparameters that are inputs of the step; all others are
            constants in it.
        ran: whether the present call has reached its graph.
        observer: is told what is compiled.
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
    ran: bool = False
    observer: Observer = log_event

    @property
    def accumulates(self) -> bool:
        """Whether gradients outlive a call."""
        return self.accumulation_steps > 1


def step_parameters(settings: StepSettings, args: Sequence[Any]) -> dict[Tensor, int | None]:
    """The parameters that a step acts on, and which inputs of the forward they are, if any.

    Those are the ones that the forward uses, and at the end of an accumulation those that have
    gradients from earlier forwards.
    """
    numbers = {id(a): i for i, a in enumerate(args) if isinstance(a, torch.Tensor)}
    found: dict[Tensor, int | None] = {}
    for p in owned_parameters(settings.optimizer):
        used = id(p) in numbers and p.requires_grad
        if used or (settings.accumulates and settings.updates and p.grad is not None):
            found[p] = numbers.get(id(p))
    return found


def tensors_beside(
    settings: StepSettings, params: Mapping[Tensor, int | None], args: Sequence[Any]
) -> dict[Key, Tensor]:
    """The tensors that a step reads or writes beside the inputs of its forward."""
    found: dict[Key, Tensor] = {}
    for index, (p, number) in enumerate(params.items()):
        if number is None:
            found["parameter", index] = p
        if settings.accumulates and p.grad is not None:
            found["gradient", index] = p.grad
    if settings.updates:
        found |= _tensors_of_optimizer(settings.optimizer, params)
    scaler = settings.grad_scaler
    if scaler is not None and scaler.is_enabled() and params:
        found["scale",], found["growth",] = scaler_tensors(scaler, next(iter(params)).device)
    if settings.average is not None and settings.updates:
        known = {id(a) for a in (*args, *params)}
        pairs = averaged_tensors(settings.average, settings.model)
        found |= {("average", j): a for j, (a, _) in enumerate(pairs)}
        found |= {("weight", j): w for j, (_, w) in enumerate(pairs) if id(w) not in known}
        found["averages",] = settings.average.n_averaged
    return found


def _tensors_of_optimizer(
    optimizer: torch.optim.Optimizer, params: Iterable[Tensor]
) -> dict[Key, Tensor]:
    """Its state, and the tensors among its hyperparameters and attributes."""
    found: dict[Key, Any] = {
        ("state", index, name): value
        for index, p in enumerate(params)
        for name, value in optimizer.state.get(p, {}).items()
    }
    found |= {("hyperparameter", n): value for n, value in hyperparameters(optimizer).items()}
    found |= {("attribute", name): value for name, value in vars(optimizer).items()}
    return {key: value for key, value in found.items() if isinstance(value, torch.Tensor)}


def constants(settings: StepSettings) -> dict[Any, Any]:
    """What a step is traced with: hyperparameters that do not vary, formulas and their numbers."""
    if not settings.updates:
        return {}
    found: dict[Any, Any] = {
        name: value
        for name, value in hyperparameters(settings.optimizer).items()
        if name not in settings.varying and not isinstance(value, torch.Tensor)
    }
    if (scaler := settings.grad_scaler) is not None and scaler.is_enabled():
        found["growth"] = scaler.get_growth_factor(), scaler.get_growth_interval()
        found["backoff"] = scaler.get_backoff_factor()
    if (average := settings.average) is not None:
        found["formula"] = average.multi_avg_fn, average.avg_fn, average.use_buffers
    return found


def allocate_gradients(params: Iterable[Tensor]) -> None:
    """Give zero gradients to parameters that have none."""
    for p in params:
        if p.grad is None:
            p.grad = torch.zeros_like(p, memory_format=torch.preserve_format)
