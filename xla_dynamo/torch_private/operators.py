"""Private attributes of torch's operators and functions, and their kernels."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch


def schema(op: Any) -> Any:
    """An overload's schema: its arguments and returns with their aliases, and `is_mutable`."""
    return op._schema


def forget_kernels(op: Any) -> None:
    """Make torch's Python dispatcher choose an overload's kernels anew, from `op.py_kernels`."""
    op._dispatch_cache.clear()


def call_kernel(op: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an overload's kernel in C++ for a dispatch key."""
    return op._op_dk(key, *args, **kwargs)


def library_kernels() -> list[str]:
    """The names of the kernels that somebody has given torch's operators and a trace may run."""
    kernels = importlib.import_module("torch.library")._impls
    # Torch's own are of these: for other devices, and rules of vmap from its first use on.
    others = ("/Meta", "/CUDA", "/MPS", "/XPU", "PrivateUse1", "/FuncTorchBatched")
    return sorted(k for k in kernels if k.startswith("aten/") and not k.endswith(others))


def define_quantized_decomposed() -> None:
    """Define the operators `torch.ops.quantized_decomposed`."""
    importlib.import_module("torch.ao.quantization.fx._decomposed")


_PUBLIC = (
    "torch",
    "torch.nn.functional",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._fft",
    "torch._C._special",
    "operator",
)


def public_name(function: Callable[..., Any]) -> str | None:
    """The name of a function that torch, or Python's operators, have; None for any other."""
    name = getattr(function, "__name__", "")
    module = getattr(function, "__module__", None) or "torch"
    if not module.startswith(("torch", "_operator")):
        return None
    for path in _PUBLIC:
        owner: Any = torch._C if path.startswith("torch._C") else sys.modules.get(path)
        if path.startswith("torch._C"):
            owner = getattr(owner, path.rpartition(".")[2], None)
        if owner is not None and getattr(owner, name, None) is function:
            return f"{path}.{name}"
    return None
