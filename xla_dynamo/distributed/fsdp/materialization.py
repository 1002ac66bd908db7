"""What a module's tensors become before they are divided: off the meta device, buffers cast."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from xla_dynamo.errors import ShardingError


def materialize(
    modules: Mapping[str, torch.nn.Module], fill: Callable[[torch.nn.Module], Any] | None
) -> None:
    """Give modules on the meta device tensors with elements.

    Args:
        modules: by name.
        fill: called with each such module; unless given, it gets memory on the CPU, and its
            `reset_parameters()` is called.

    Raises:
        ShardingError: a module has no such method, is on the meta device still, or is tied there.
    """
    on_meta = {name: module for name, module in modules.items() if _is_meta(module)}
    parameters = [p for m in on_meta.values() for p in m._parameters.values() if p is not None]
    if len({id(p) for p in parameters}) < len(parameters):
        raise ShardingError(
            "parameters on the meta device are tied, and would not be after they have got memory: "
            "give the model memory before it is wrapped"
        )
    for name, module in on_meta.items():
        if fill is not None:
            fill(module)
        elif hasattr(module, "reset_parameters"):
            module.to_empty(device="cpu", recurse=False).reset_parameters()
        else:
            raise ShardingError(
                f"{name.rstrip('.') or 'the module'} is a {type(module).__name__} on the meta "
                "device without a method reset_parameters: give param_init_fn"
            )
        if _is_meta(module):
            raise ShardingError(
                f"{name.rstrip('.') or 'the module'}, a {type(module).__name__}, is on the meta "
                "device still after param_init_fn was called with it"
            )


def cast_buffers(
    modules: Iterable[torch.nn.Module], dtype: torch.dtype | None
) -> list[tuple[torch.nn.Module, str, torch.dtype]]:
    """Move buffers to the device, those of floating-point numbers in this dtype.

    Returns:
        Those that had another dtype: the module, the name, and that dtype.
    """
    cast = []
    for module in modules:
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            to = dtype if dtype is not None and buffer.is_floating_point() else buffer.dtype
            if to != buffer.dtype:
                cast.append((module, name, buffer.dtype))
            module._buffers[name] = buffer.to("xla", to)
    return cast


def _is_meta(module: torch.nn.Module) -> bool:
    own = (*module._parameters.values(), *module._buffers.values())
    return any(t is not None and t.is_meta for t in own)
