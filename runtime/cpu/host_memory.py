"""Let glibc's allocator keep the large blocks that programs for the CPU free and need again.

By default it returns a block of 32 MB or more to the system as soon as it is freed. The next call
then gets pages that the system must clear again, which takes a third of the time of MobileNetV2.
"""

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from xla_dynamo.switches.others import ALLOCATOR

# Blocks of up to this many bytes come from memory that is kept; this much of it is kept free, and
# what a large program needs besides.
KEPT_BLOCKS, KEPT_FREE = 1 << 30, 1 << 28
_MOST = 2**31 - 1  # glibc takes no more: it is an int there
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_lock = threading.RLock()
_needs: list[int] = []


def keep_freed_memory() -> bool:
    """Let this process keep up to `KEPT_FREE` bytes that it has freed; whether that was done.

    Not where the user has chosen by an environment variable, nor with another C library. Blocks of
    more than 64 MB are kept where the main thread asks for them: other threads have heaps of their
    own, which are no larger.
    """
    return _keep(KEPT_BLOCKS, KEPT_FREE)


def keep_freed_memory_for(program: object, size: int) -> None:
    """Let it keep what a program frees in a call, `size` bytes, while the program is there.

    2 GB at most.
    """
    if size <= KEPT_FREE // 2:
        return
    _change_needs(_needs.append, size)
    weakref.finalize(program, _forget, size).atexit = False


def _forget(size: int) -> None:
    _change_needs(_needs.remove, size)
    give_back_memory()


def _change_needs(change: Callable[[int], None], size: int) -> None:
    with _lock:
        change(size)
        most = min(max(_needs, default=0) + KEPT_FREE, _MOST)
        _keep(max(KEPT_BLOCKS, most), most)


def _keep(block: int, free: int) -> bool:
    function = _function("mallopt")
    if function is None or any(switch.get() for switch in ALLOCATOR):
        return False
    return bool(function(_M_MMAP_THRESHOLD, block) and function(_M_TRIM_THRESHOLD, free))


def give_back_memory() -> None:
    """Let the allocator return what a compilation has freed: a tenth of a second, 100s of MB."""
    trim = _function("malloc_trim")
    if trim is not None:
        trim(0)


def _function(name: str) -> Any:
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
