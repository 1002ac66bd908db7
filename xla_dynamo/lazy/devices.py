"""Tell which devices there are, under the names that PyTorch/XLA's users know: there is one."""

from typing import Any

import torch

from xla_dynamo.lazy.device_module import checked_index
from xla_dynamo.lazy.memory import placement


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The lazy device: the older name of `xla_dynamo.device`.

    Args:
        n: the device's index; None or 0, since there is one device.
        devkind: the hardware that is wanted, as in "CPU"; None for any.

    Raises:
        RuntimeError: there is no such device.
    """
    from xla_dynamo.lazy import registration  # claims torch's place, so not before it is asked for

    device = registration.device(n)
    if devkind is not None and devkind != xla_device_hw(device):
        raise RuntimeError(f"there is no device of kind {devkind!r}, but {real_devices()}")
    return device


def devices() -> list[torch.device]:
    """The devices of this process: a list of one."""
    return [xla_device()]


def device_count() -> int:
    """The number of devices of this process: one."""
    return 1


def real_devices() -> list[str]:
    """The hardware behind the devices, as in `["CPU:0"]`."""
    return [f"{xla_device_hw('xla:0')}:0"]


def xla_device_hw(device: Any) -> str:
    """The kind of hardware behind a device: "CPU", "CUDA" or "TPU".

    Args:
        device: the device, or its name.

    Raises:
        ValueError, RuntimeError: it is not the 'xla' device.
    """
    checked_index(torch.device(device))
    return placement().platform.upper()
