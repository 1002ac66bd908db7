"""Names of `torch_xla.experimental.assume_pure`: functions and modules that are traced once."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

import xla_dynamo
from xla_dynamo.lazy.placeholders import create_placeholder_tensor

Function = Callable[..., Any]


def assume_pure(fn: Function, *, add_rng_seed_argument: bool = False) -> Function:
    """A function of tensors that is compiled once for each form of its arguments.

    It must depend on nothing else, and change nothing. Gradients pass. Random numbers that it draws
    are drawn at each call.

    Args:
        fn: the function.
        add_rng_seed_argument: whether the returned function takes `rng_seed`, an integer by name,
            which its random numbers depend on, and nothing else then.
    """
    compiled = torch.compile(fn, backend="openxla", fullgraph=True, dynamic=False)

    @functools.wraps(fn)
    def seeded(*args: Any, rng_seed: Any, **kwargs: Any) -> Any:
        device, cpu = xla_dynamo.get_rng_state(), torch.get_rng_state()
        try:
            torch.manual_seed(int(rng_seed))
            xla_dynamo.manual_seed(int(rng_seed))
            return compiled(*args, **kwargs)
        finally:
            xla_dynamo.set_rng_state(device)
            torch.set_rng_state(cpu)

    return seeded if add_rng_seed_argument else compiled


def assume_pure_torch(func: Function, use_cache: bool = False) -> Function:
    """`assume_pure` for functions that no gradients are taken of.

    Args:
        func: the function.
        use_cache: not used: programs are kept in any case, one for each form of the arguments.

    Raises:
        RuntimeError: gradients are enabled.
    """
    if torch.is_grad_enabled():
        raise RuntimeError("assume_pure_torch is for functions under torch.no_grad()")
    pure = assume_pure(func)

    @functools.wraps(func)
    def without_gradients(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return pure(*args, **kwargs)

    return without_gradients


class PureModule(nn.Module):
    """A module whose forward is compiled once for each form of its arguments.

    It must depend on nothing else than its arguments, parameters and buffers, and change nothing.
    """

    def __init__(self, module: nn.Module) -> None:
        """Take the module."""
        super().__init__()
        self._module = module
        self._pure = assume_pure(functools.partial(_called, module))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module."""
        parameters, buffers = (
            dict(self._module.named_parameters()),
            dict(self._module.named_buffers()),
        )
        return self._pure(parameters, buffers, args, kwargs)


def _called(module: nn.Module, parameters: Any, buffers: Any, args: Any, kwargs: Any) -> Any:
    return torch.func.functional_call(module, (parameters, buffers), args, kwargs)


def make_fake_inputs(input: Any) -> Any:
    """A placeholder of a tensor's form on the device 'xla'; what is no tensor, as it is."""
    if not isinstance(input, torch.Tensor):
        return input
    made = create_placeholder_tensor(input.shape, input.dtype)
    return made.requires_grad_(input.requires_grad)


def prepare_computation_inputs(
    fn_ctx: Any, flat_fake_inputs: Sequence[Any], flat_inputs: Sequence[Any]
) -> tuple[list[torch.Tensor], dict[int, torch.Tensor], dict[int, int]]:
    """What a lowered function's parameters are, of its arguments and of what it captured.

    Args:
        fn_ctx: a `LoweringContext` that was built for arguments of `make_fake_inputs`.
        flat_fake_inputs: these.
        flat_inputs: the real arguments.

    Returns:
        The parameters in order; by number, those that are captured; and of each of the others, the
        place of its argument.
    """
    captured = dict(fn_ctx.device_parameter_id_tensor_mapping())
    count, places = len(captured), {}
    for place, fake in enumerate(flat_fake_inputs):
        number = fn_ctx.tensor_parameter_id(fake) if isinstance(fake, torch.Tensor) else -1
        if number != -1:
            places[number] = place
            del captured[number]
    inputs = [captured[n] if n in captured else flat_inputs[places[n]] for n in range(count)]
    return inputs, captured, places
