"""Checkpoint a module: what it computes for the backward is computed anew there."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from xla_dynamo.spmd.recipes.forwards import wrap_forward


def checkpoint_module(module: torch.nn.Module) -> torch.nn.Module:
    """Have a module compute its intermediate values a second time in the backward, and save none.

    As PyTorch/XLA's function of this name.

    Args:
        module: it stays the module it is, under the names it has; its forward is wrapped in
            `torch.utils.checkpoint.checkpoint`.

    Returns:
        The module.
    """

    def around(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    wrap_forward(module, around)
    return module
