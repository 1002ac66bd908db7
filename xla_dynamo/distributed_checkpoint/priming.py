"""Make the state of an optimizer that a checkpoint is loaded into."""

import torch

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.training.optimizer_trace import initialise_state, owned_parameters
from xla_dynamo.training.sharded_state import mark_state


def prime_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Make an optimizer's state, which otherwise its first step makes, so that it can be loaded.

    The state of marked parameters is marked like them. Parameters keep their values and gradients,
    unlike in PyTorch/XLA. The values of the state are those that a first step with zero gradients
    leaves, or starts with.

    Returns:
        The optimizer.

    Raises:
        UnsupportedError: the optimizer cannot make a step without a model or dense gradients.
    """
    params = [p for p in owned_parameters(optimizer) if p.requires_grad]
    initialise_state(optimizer, params)
    without = [p for p in params if not optimizer.state.get(p)]
    if without:
        _step_with_zeros(optimizer, without)
    mark_state(optimizer)
    return optimizer


def _step_with_zeros(optimizer: torch.optim.Optimizer, params: list[torch.Tensor]) -> None:
    """Let the optimizer make a step for some parameters, and put their values back."""
    if isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise UnsupportedError(
            f"prime_optimizer cannot make a step of {type(optimizer).__name__}: save and load its "
            "state_dict() with torch.save and torch.load"
        )
    owned = owned_parameters(optimizer)
    grads = [p.grad for p in owned]
    values = [p.detach().clone() for p in params]
    try:
        for p in owned:
            p.grad = None
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
    finally:
        with torch.no_grad():
            for p, value in zip(params, values, strict=True):
                p.copy_(value)
        for p, grad in zip(owned, grads, strict=True):
            p.grad = grad
