"""torch devices to PJRT devices."""

import functools
import os
from typing import Any

import jax
import torch

from xla_dynamo.errors import UnsupportedTensor
from xla_dynamo.runtime import forks
from xla_dynamo.runtime.cpu.host_memory import keep_freed_memory
from xla_dynamo.runtime.jaxlib_private import make_cpu_client

_PLATFORMS = {"cpu": "cpu", "cuda": "cuda"}


_watch_forks = functools.cache(forks.watch)


@functools.cache
def _cpu_client() -> Any:
    keep_freed_memory()
    return make_cpu_client()


def _devices_of_jax(platform: str) -> list[jax.Device]:
    # torch's own allocator lives on the same GPU; XLA's would otherwise claim three quarters of it.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return jax.local_devices(backend=platform)


@functools.cache
def pjrt_device(device_type: str, index: int) -> jax.Device:
    """The PJRT device that shares its memory with a torch device.

    Raises:
        UnsupportedTensor: there is no PJRT plugin for this type of device.
    """
    if device_type not in _PLATFORMS:
        known = ", ".join(_PLATFORMS)
        raise UnsupportedTensor(
            f"no PJRT platform for tensors on {device_type!r}; move the model and its inputs to "
            f"one of: {known}"
        )
    platform = _PLATFORMS[device_type]
    try:
        devices = _cpu_client().local_devices() if platform == "cpu" else _devices_of_jax(platform)
    except RuntimeError as error:
        raise UnsupportedTensor(
            f"tensors on {device_type!r} need a PJRT plugin for {platform}, which is not "
            f"installed: pip install 'xla-dynamo[{platform}]' ({error})"
        ) from error
    _watch_forks(devices[0].client)
    by_hardware_id = {d.local_hardware_id or 0: d for d in devices}
    return by_hardware_id[index]


def pjrt_device_of(device: torch.device) -> jax.Device:
    """`pjrt_device` of a torch.device; no index means torch's current device of that type."""
    index = device.index
    if index is None:
        index = torch.cuda.current_device() if device.type == "cuda" else 0
    return pjrt_device(device.type, index)
