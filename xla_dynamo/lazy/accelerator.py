"""What `torch.accelerator` asks of the device 'xla', beside its index: to wait, and its memory.

Torch's functions ask C++ objects of a device, which one that is written in Python cannot have. So
the bindings through which they ask have other functions in their place.
"""

import os
from typing import Any

from xla_dynamo.lazy import device_module
from xla_dynamo.lazy.streams import wait
from xla_dynamo.torch_private import change_accelerator


def _wait(index: int) -> None:
    wait()


def _memory(index: int) -> dict[str, Any]:
    """The bytes of tensors, now and at most, in the form of torch's allocators."""
    now, most = device_module.memory_allocated(), device_module.max_memory_allocated()
    held = {"all": {"current": now, "peak": most}}
    return dict.fromkeys(("allocated_bytes", "active_bytes", "reserved_bytes"), held)


def _free_and_total(index: int) -> tuple[int, int]:
    """The bytes that are free, and all; where the platform tells no limit, those of the host."""
    told = device_module.memory_stats()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = told.get("bytes_limit", pages)
    return total - told["bytes_used"], total


def _nothing(*_: Any) -> None:
    """No memory is kept, and the platform resets no peak."""


def answer_torch_accelerator() -> None:
    """From now on, `torch.accelerator` can be asked for these, in all threads."""
    change_accelerator(
        "xla",
        synchronizeDevice=_wait,
        isAllocatorInitialized=lambda: True,
        emptyCache=_nothing,
        getDeviceStats=_memory,
        resetAccumulatedStats=_nothing,
        resetPeakStats=_nothing,
        getMemoryInfo=_free_and_total,
    )
