"""The memory of this process and of its devices: what is used, the most that was, and the limit."""

import os
import resource
import sys
from collections.abc import Mapping
from typing import Any

_NAMES = {
    "bytes_used": "bytes_in_use",
    "peak_bytes_used": "peak_bytes_in_use",
    "bytes_limit": "bytes_limit",
}
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """How much of this process is in memory now; its peak where the system does not tell."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return peak_resident_bytes()


def peak_resident_bytes() -> int:
    """The most that was of this process in memory."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def get_memory_info(device: Any = "cpu") -> dict[str, int]:
    """The memory of a device, in bytes, by PyTorch/XLA's names.

    Args:
        device: a `torch.device`, or its name: "cpu", "cuda:1". The 'xla' device is the one whose
            memory its tensors have.

    Returns:
        `bytes_used`, `peak_bytes_used` and `bytes_limit`, where the platform tells them, and
        `buffer_bytes`, of PJRT's buffers that live, tensors included whose memory they share. The
        CPU's memory is that of this process, and its limit that of the machine.

    Raises:
        UnsupportedTensor: there is no PJRT plugin for the device.
    """
    import torch

    from xla_dynamo.runtime.clients import placement_of

    placement = placement_of(torch.device(device))
    here = set(placement.device.client.local_devices()) if placement.platform == "cpu" else set()
    here.add(placement.device)
    living = [b for b in placement.device.client.live_buffers() if set(b.devices()) <= here]
    # Several buffers may view one memory.
    sizes = {_address(buffer): buffer.nbytes for buffer in living if not buffer.is_deleted()}
    found = {"buffer_bytes": sum(sizes.values())}
    told = placement.device.memory_stats() or {}
    if placement.platform == "cpu":
        told = {
            "bytes_in_use": (used := resident_bytes()),
            # The kernel notes the peak later than what is used.
            "peak_bytes_in_use": max(used, peak_resident_bytes()),
            "bytes_limit": os.sysconf("SC_PHYS_PAGES") * _PAGE,
        }
    return found | named_as_in_pytorch_xla(told)


def named_as_in_pytorch_xla(told: Mapping[str, int]) -> dict[str, int]:
    """What PJRT tells of a device's memory, as far as it does, by PyTorch/XLA's names."""
    return {ours: int(told[theirs]) for ours, theirs in _NAMES.items() if theirs in told}


def _address(buffer: Any) -> Any:
    try:
        return buffer.unsafe_buffer_pointer()
    except (RuntimeError, ValueError):  # of several devices
        return id(buffer)
