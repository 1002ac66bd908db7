"""How the C library's allocator (glibc's) treats the large blocks that programs for the CPU need.

By default it gives a block of 32 MB or more back to the system as soon as it is freed, and the
next call gets pages that the system must clear once more: a third of the time of MobileNetV2.
"""

import ctypes
import os
import sys
from typing import Any

# Blocks of up to this many bytes come from memory that is kept; this much is kept free at most.
KEPT_BLOCKS, KEPT_FREE = 1 << 30, 1 << 28
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Whoever sets one of these has chosen.
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed_memory() -> bool:
    """Let this process keep up to `KEPT_FREE` bytes that it has freed; whether that was done.

    Not where the user has chosen by an environment variable, nor with another C library.
    """
    function = _function("mallopt")
    if function is None or any(os.environ.get(name) for name in _VARIABLES):
        return False
    return bool(function(_M_MMAP_THRESHOLD, KEPT_BLOCKS) and function(_M_TRIM_THRESHOLD, KEPT_FREE))


def give_back_memory() -> None:
    """Let the allocator return what a compilation has freed: a tenth of a second, 100s of MB."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
