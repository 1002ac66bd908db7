"""Calls of torch's C functions from inside a program, with no Python in the way.

torch exports a C ABI for code that Inductor compiles (torch/csrc/inductor/aoti_torch/c). A custom
call of `TARGET` makes several calls of its functions, one after another: the call's one attribute
is a script, an array of 64-bit numbers, which `machine_code` runs:

    the number of calls; then for each the number of the function in `C_FUNCTIONS`, the number of
    its arguments, and three numbers for each of them: its place, a kind and a value

`lowerings.builders.call_scripts` writes such scripts. They hold no address, so executables that
make such calls may be saved.
"""

import ctypes
import functools
import pathlib
from typing import Any

import jax
import torch

from xla_dynamo.runtime.cpu import foreign_calls, machine_code
from xla_dynamo.torch_private import C_FUNCTIONS

TARGET = "xla_dynamo.script"
# The slots that scripts keep tensors in, which are to be deleted where a call fails.
_TENSORS = range(16, machine_code.NUMBER_OF_SLOTS)


@functools.cache
def can_run_scripts() -> bool:
    """Whether programs for the CPU can run scripts; registers the handler if so."""
    library = torch_library()
    if not (machine_code.can_run() and foreign_calls.can_call() and library is not None):
        return False
    if not all(hasattr(library, name) for name in C_FUNCTIONS):
        return False
    try:
        address = machine_code.load(
            {
                "FUNCTIONS": ctypes.addressof(_table()),
                "FAIL": _address(_fail),
                "OTHER": foreign_calls.handler_address(),
            }
        )
    except OSError:
        return False
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu")
    return True


@functools.cache
def torch_library() -> Any:
    """The library with torch's kernels; None where torch keeps them elsewhere."""
    path = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    return ctypes.CDLL(str(path)) if path.exists() else None


@functools.cache
def _table() -> Any:
    """The addresses of the functions, in the order of their names."""
    library = torch_library()
    addresses = [_address(getattr(library, name)) for name in C_FUNCTIONS]
    return (ctypes.c_void_p * len(addresses))(*addresses)


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
def _fail(frame: int, slots: int, number: int) -> int | None:
    """The error of a call of a function that has failed."""
    tensors = (ctypes.c_void_p * machine_code.NUMBER_OF_SLOTS).from_address(slots)
    for slot in _TENSORS:
        if handle := tensors[slot]:
            delete(handle)
    return foreign_calls.make_error(
        frame, f"{C_FUNCTIONS[number]} failed in torch: its message is on the standard error"
    )


def delete(handle: int) -> None:
    """Delete a tensor that a handle stands for: the handle, and what it alone holds."""
    function = torch_library().aoti_torch_delete_tensor_object
    function.argtypes = [ctypes.c_void_p]
    function(handle)
