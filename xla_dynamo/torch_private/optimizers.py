"""Private parts of torch's optimizers and of its scaler of losses."""

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch


def step_hooks(optimizer: torch.optim.Optimizer) -> list[Mapping[int, Callable[..., Any]]]:
    """The hooks before and after an optimizer's step, its own and those of all optimizers."""
    everybodys = sys.modules[torch.optim.Optimizer.__module__]  # torch.optim deletes its name
    return [
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        everybodys._global_optimizer_pre_hooks,
        everybodys._global_optimizer_post_hooks,
    ]


def init_group(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """The function that makes the state of a parameter group: takes it, and lists to be filled."""
    return optimizer._init_group  # type: ignore[attr-defined]


def mark_stepped(optimizer: torch.optim.Optimizer) -> None:
    """Tell learning-rate schedulers that the optimizer has made a step."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def scaler_tensors(
    scaler: torch.amp.GradScaler, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """A scaler's own scale (f32) and count of steps without overflow (i32), 0-d each."""
    if scaler._scale is None:
        scaler._lazy_init_scale_growth_tracker(device)
    return scaler._scale, scaler._growth_tracker  # type: ignore[return-value]


def makes_state_in_groups(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has the function that `init_group` gives."""
    return hasattr(optimizer, "_init_group")


def is_counted_by_scheduler(step: Callable[..., Any]) -> bool:
    """Whether a `step` is an optimizer's own, which a learning-rate scheduler counts."""
    return hasattr(step, "_wrapped_by_lr_sched")
