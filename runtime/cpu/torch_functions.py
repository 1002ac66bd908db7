"""torch's C functions for compiled code (torch/csrc/inductor/aoti_torch), for scripts of calls.

They return 0, or another number where torch has raised an error, which they print.
"""

import ctypes
import functools
import pathlib
from typing import Any

import torch

_PREFIX = "aoti_torch_"


@functools.cache
def library() -> Any:
    """The library with torch's kernels, OpenMP and MKL for the CPU; None where it is elsewhere."""
    path = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return ctypes.CDLL(str(path)) if path.exists() else None


def mkl_threads() -> Any:
    """MKL's function that sets how many threads it has for a thread, and returns what was set."""
    return getattr(library(), "MKL_Set_Num_Threads_Local", None)


def threads() -> Any:
    """The function that tells how many threads torch has for an operator; None if it is elsewhere.

    In a thread that calls it for the first time, it tells OpenMP what number was set for torch,
    which otherwise the thread's first operator does.
    """
    return getattr(library(), "_ZN2at15get_num_threadsEv", None)


def has(name: str) -> bool:
    """Whether torch has this kernel for the CPU, and what scripts need beside it."""
    needed = [f"cpu_{name}", "create_tensor_from_blob_v2", "copy_", "delete_tensor_object"]
    return all(hasattr(library(), _PREFIX + one) for one in needed)


@functools.cache
def function(name: str) -> Any:
    """A function of tensors, by its name without `aoti_torch_`."""
    return getattr(library(), _PREFIX + name)


def kernel(name: str) -> Any:
    """The kernel of an ATen operator for the CPU; what is a `double` in its place is 0.0."""
    return function(f"cpu_{name}")


@functools.cache
def dtype(given: torch.dtype) -> int:
    """The number of a dtype."""
    return function(f"dtype_{str(given).removeprefix('torch.')}")()
