"""Which libraries of kernels the programs of a platform may call."""

import functools
import platform
import sys

import torch

from xla_dynamo.runtime.jaxlib_private import calls_onednn


@functools.cache
def libraries_of(pjrt_platform: str) -> frozenset[str]:
    """The names of the libraries that XLA calls on a PJRT platform (see `Context.libraries`).

    "onednn" are its kernels for float32, and "onednn_bfloat16" those for bfloat16, which it has
    for processors with AVX-512.
    """
    on_x86 = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
    if pjrt_platform != "cpu" or not on_x86 or not calls_onednn():
        return frozenset()
    has_bfloat16 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return frozenset({"onednn", "onednn_bfloat16"} if has_bfloat16 else {"onednn"})
