"""Torch's switches and modes, on which a trace depends beside the graph."""

import functools
import importlib
import re
from collections.abc import Callable
from typing import Any

import torch


def in_a_mode() -> bool:
    """Whether a mode of torch's dispatcher, or of __torch_function__, is active."""
    return bool(torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack())  # type: ignore[attr-defined]


# Functions of torch._C that give a switch, by which torch chooses operators or their results.
_SWITCHES = re.compile(
    r"_get_(\w+_)?(enabled|precision|benchmark|deterministic\w*|allow_\w+|preferred_backend|"
    r"sdp\w*|priority_order|cpu_capability|fill_uninitialized_memory|qengine|reduction)"
)

_PRECISIONS = [("generic", "all")]
_PRECISIONS += [(b, op) for b in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")]


def global_settings() -> list[str]:
    """The state of torch that decides what a graph is traced to, one text a switch."""
    names = [name for name in dir(torch._C) if _SWITCHES.fullmatch(name)]
    found = [f"{name}={getattr(torch._C, name)()!r}" for name in names]
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        found += [f"{pair}={precision(*pair)}" for pair in _PRECISIONS]
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
    found += [repr(modes), str(torch.get_default_dtype()), str(torch.get_default_device())]
    for device in ("cpu", "cuda"):
        found.append(f"{torch.is_autocast_enabled(device)} {torch.get_autocast_dtype(device)}")
    return found


def functorch_settings() -> str:
    """AOTAutograd's switches, as a text."""
    config = importlib.import_module("torch._functorch.config")
    return repr(sorted(config.get_serializable_config_copy().items()))


def set_mkldnn(enabled: bool) -> bool:
    """Set whether torch uses oneDNN, and return whether it did.

    `torch.backends.mkldnn.flags` sets other things too, and warns.
    """
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    return before


def change_accelerator(device: str, **answers: Callable[..., Any]) -> None:
    """Let other functions answer what `torch.accelerator` asks of a kind of device.

    Args:
        device: the kind; where torch chooses another one, its own functions answer.
        answers: functions, by the names of torch's bindings without their prefix.
    """
    for name, answer in answers.items():
        own = getattr(torch._C, f"_accelerator_{name}", None)
        if own is not None:  # this torch has such a binding
            setattr(torch._C, f"_accelerator_{name}", _answering(device, answer, own))


def _answering(device: str, answer: Callable[..., Any], own: Callable[..., Any]) -> Any:
    @functools.wraps(answer)
    def asked(*args: Any) -> Any:
        chosen = torch.accelerator.current_accelerator()
        is_ours = chosen is not None and chosen.type == device
        return (answer if is_ours else own)(*args)

    return asked
