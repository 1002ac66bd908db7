"""Names of `torch_xla.utils.checkpoint`: activations that are computed again in the backward."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.checkpoint

from xla_dynamo.torch_private import pytree
from xla_dynamo.torch_xla.forms.xla_model import optimization_barrier_


class CheckpointStatus:
    """Whether this process computes activations again.

    Attributes:
        in_chkpt_bwd: whether it does.
    """

    def __init__(self) -> None:
        """Nothing is computed again yet."""
        self.in_chkpt_bwd = False


chkpt_status = CheckpointStatus()


def get_device_states(*args: Any) -> tuple[list[torch.device], list[torch.Tensor]]:
    """The devices of tensors among arguments, but for the CPU, and the states of their numbers.

    Raises:
        RuntimeError: there are devices of several types.
    """
    devices = {a.device: None for a in args if isinstance(a, torch.Tensor)}
    devices.pop(torch.device("cpu"), None)
    if len({device.type for device in devices}) > 1:
        raise RuntimeError(f"the arguments are on {[*map(str, devices)]}: one type is allowed")
    return [*devices], [_module(device).get_rng_state(device) for device in devices]


def set_device_states(
    devices: Sequence[torch.device], states: Sequence[torch.Tensor | int]
) -> None:
    """Put the random numbers of devices into states that `get_device_states` gave."""
    for device, state in zip(devices, states, strict=True):
        _module(device).set_rng_state(state, device)


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type)


class CheckpointFunction(torch.utils.checkpoint.CheckpointFunction):
    """A function whose activations are not kept: its backward calls the function once more."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Call the function again, with gradients, behind a barrier, and go back through it.

        Raises:
            RuntimeError: it is torch.autograd.grad that asks, or no result needs gradients.
        """
        # Without the barrier XLA would find the activations equal to the forward's, and keep those.
        read = [ctx.saved_tensors, gradients, _state_of(ctx.run_function)]
        optimization_barrier_(_tensors(read))
        chkpt_status.in_chkpt_bwd = True
        try:
            return torch.utils.checkpoint.CheckpointFunction.backward(ctx, *gradients)
        finally:
            chkpt_status.in_chkpt_bwd = False


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _state_of(function: Any) -> list[torch.Tensor]:
    """The parameters and buffers of a module, or of the module that a method belongs to."""
    module = getattr(function, "__self__", function)
    if not isinstance(module, torch.nn.Module):
        return []
    return [*module.parameters(), *module.buffers()]


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool = True, **kwargs: Any
) -> Any:
    """Call a function without keeping its activations: the backward computes them again.

    On the 'xla' device the backward begins behind a barrier, without which XLA would see that the
    activations are the forward's and keep those.

    Args:
        function: the function, which does the same at each call.
        *args: its arguments. Gradients pass through tensors that are among them by themselves.
        use_reentrant: whether an autograd function does it. Otherwise `torch.utils.checkpoint`
            does, without a barrier, where PyTorch/XLA raises.
        **kwargs: `preserve_rng_state`, whether the second call draws the numbers of the first (it
            does unless told); others are the function's, and need `use_reentrant=False`.

    Raises:
        ValueError: there are others.
    """
    if not use_reentrant:
        return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
    preserve = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError(
            f"unexpected keyword arguments {sorted(kwargs)}: with use_reentrant=True the function "
            "takes positional ones alone"
        )
    return CheckpointFunction.apply(function, preserve, *args)
