"""Which libraries of kernels the programs of a platform may call."""

import functools
import platform
import sys

import torch

from xla_dynamo.lowerings.target import (
    ONEDNN,
    ONEDNN_BFLOAT16,
    ONEDNN_PACKED,
    ONEDNN_PLANS,
    TORCH,
    TORCH_PLANS,
)
from xla_dynamo.runtime.cpu import call_scripts, onednn
from xla_dynamo.runtime.cpu.foreign_calls import can_call
from xla_dynamo.runtime.cpu.native_code import NativeCodeError, can_compile, load
from xla_dynamo.runtime.cpu.torch_shares import can_share
from xla_dynamo.runtime.jaxlib_private import calls_onednn


@functools.cache
def libraries_of(pjrt_platform: str) -> frozenset[str]:
    """The names of the libraries that XLA calls on a PJRT platform (see `Context.libraries`).

    "onednn" are its kernels for float32, and "onednn_bfloat16" those for bfloat16, which it has
    for processors with AVX-512. "onednn_packed" are those of a library of oneDNN's own, which take
    packed weights, and programs that call them need `can_execute_packed`. "onednn_plans" are
    those of them that also read plain operands.
    "torch" are kernels of torch, and "torch_plans" those of them that need no Python.
    """
    if pjrt_platform != "cpu":
        return frozenset()
    names = set()
    if sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64") and calls_onednn():
        names.add(ONEDNN)
        if torch.backends.cpu.get_cpu_capability() == "AVX512":
            names.add(ONEDNN_BFLOAT16)
    if can_share() and can_call():
        names.add(TORCH)
    if ONEDNN in names and can_pack():
        names |= {ONEDNN_PACKED, ONEDNN_PLANS}
        if TORCH in names:
            names.add(TORCH_PLANS)
    return frozenset(names)


def can_pack() -> bool:
    """Whether there is a library of oneDNN's own, and what runs its plans can be compiled."""
    return onednn.library() is not None and call_scripts.can_run()


@functools.cache
def can_execute_packed() -> bool:
    """Whether what "onednn_packed" calls need is there; registers it.

    It is compiled, which takes 70 ms, so only programs that have such calls ask.
    """
    if not can_pack():
        return False
    try:
        call_scripts.register(onednn.threads())
    except NativeCodeError:
        return False
    return True


def fault_of_native_code() -> str:
    """What is wrong with the compiler of native code; "" if all is well, or there is none."""
    if can_compile():
        try:
            load("", {})
        except NativeCodeError as error:
            return str(error)
    return ""
