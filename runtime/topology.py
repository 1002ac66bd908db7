"""The devices and processes of the job, under the names of PyTorch/XLA's `runtime`.

What it calls a runtime device is a device of PJRT. What it calls a device is one of torch: here
there is one, 'xla:0', as in PyTorch/XLA's SPMD mode.
"""

import functools
import os
from typing import Any

import jax
import torch

from xla_dynamo.errors import OptionError
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import marks
from xla_dynamo.runtime.clients import devices_of, placement_on
from xla_dynamo.runtime.placement import Placement


class _Asked:
    def __init__(self) -> None:
        self.spmd = False  # by `use_spmd`


_asked = kept(_Asked)


def _chosen_platform() -> str:
    return os.environ.get("PJRT_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


@functools.cache
def default_placement() -> Placement:
    """The placement on the platform that the environment variable PJRT_DEVICE says.

    Its values are the names of PJRT platforms, CPU, CUDA or TPU say, as in PyTorch/XLA. Without it,
    that is a GPU where torch and JAX have one, else the CPU.

    Raises:
        OptionError: there is no such platform.
    """
    name = _chosen_platform()
    try:
        return placement_on(name.lower())
    except RuntimeError as error:
        raise OptionError(
            f"PJRT_DEVICE is {name!r}, and there is no such platform: install its PJRT plugin, or "
            f"set CPU ({error})"
        ) from error


def default_devices() -> list[jax.Device]:
    """The PJRT devices of the default platform that this process reaches, by their ids.

    Raises:
        OptionError: there is no such platform.
    """
    return sorted(devices_of(default_placement().platform), key=lambda device: device.id)


def device_type() -> str:
    """The PJRT platform that is used by default: "CPU", "CUDA" or "TPU"."""
    return _chosen_platform().upper()


def set_device_type(pjrt_device: str) -> None:
    """Choose the platform, as the environment variable PJRT_DEVICE does, before its first use.

    Raises:
        OptionError: another platform is in use already.
    """
    if default_placement.cache_info().currsize and pjrt_device.upper() != device_type():
        raise OptionError(
            f"the platform is {device_type()} already, and cannot become {pjrt_device!r}: choose "
            "it before tensors or devices are asked for"
        )
    os.environ["PJRT_DEVICE"] = pjrt_device


def global_runtime_device_count() -> int:
    """The number of PJRT devices of all processes: over so many a mesh may go."""
    return default_devices()[0].client.device_count()


def addressable_runtime_device_count() -> int:
    """The number of PJRT devices that this process reaches."""
    return len(default_devices())


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """What is known of each PJRT device, by its id: `name`, and what its platform tells.

    The platform of TPUs tells `coords`, `core_on_chip` and `slice_index`.
    """
    return [_attributes(device) for device in default_devices()[0].client.devices()]


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What is known of one PJRT device, such as "CPU:3".

    Raises:
        OptionError: there is no such device.
    """
    known = {attributes["name"]: attributes for attributes in global_runtime_device_attributes()}
    if device.upper() not in known:
        raise OptionError(f"there is no device {device!r}, but {', '.join(known)}")
    return known[device.upper()]


def _attributes(device: jax.Device) -> dict[str, Any]:
    told = ("coords", "core_on_chip", "slice_index")
    attributes = {name: getattr(device, name, None) for name in told}
    known = {name: value for name, value in attributes.items() if value is not None}
    return {"name": f"{device_type()}:{device.id}", **known}


def global_device_count() -> int:
    """The number of devices of torch, of all processes: one each."""
    return process_count()


def local_device_count() -> int:
    """The number of devices of torch on this host: one for each of its processes."""
    return local_process_count()


def addressable_device_count() -> int:
    """The number of devices of torch in this process: one, 'xla:0'.

    `addressable_runtime_device_count` counts the PJRT devices behind it.
    """
    return 1


def world_size() -> int:
    """The number of processes of the job, each of which has one device of torch."""
    return process_count()


def global_ordinal() -> int:
    """The number of this process among all, from 0."""
    return process_index()


def local_ordinal() -> int:
    """The number of this process among those of this host: PJRT_LOCAL_PROCESS_RANK, or 0."""
    return int(os.environ.get("PJRT_LOCAL_PROCESS_RANK", "0"))


def process_index() -> int:
    """The number of this process, from 0."""
    return default_devices()[0].client.process_index()


def process_count() -> int:
    """The number of processes whose devices make up the job."""
    return len({device.process_index for device in default_devices()[0].client.devices()})


def local_process_count() -> int:
    """The number of processes on this host: PJRT_LOCAL_PROCESS_COUNT, or 1."""
    return int(os.environ.get("PJRT_LOCAL_PROCESS_COUNT", "1"))


def use_spmd(auto: bool = False) -> None:
    """Say that programs are partitioned over devices. Nothing is switched: marks alone shard.

    Args:
        auto: whether XLA is to choose shardings by itself, which it cannot do here.

    Raises:
        OptionError: `auto` was given.
    """
    if auto:
        raise OptionError(
            "use_spmd(auto=True): shardings are not chosen automatically; mark inputs and "
            "parameters by xla_dynamo.spmd.mark_sharding, and XLA partitions the rest"
        )
    _asked.spmd = True


def is_spmd() -> bool:
    """Whether `use_spmd` was called, or any tensor was marked."""
    return _asked.spmd or marks.were_ever_there()


def slices() -> list[list[jax.Device]]:
    """The PJRT devices in groups that a fast network connects, one a process where none is known.

    The platform of TPUs calls such a group a slice.
    """
    found: dict[int, list[jax.Device]] = {}
    for device in sorted(default_devices()[0].client.devices(), key=lambda device: device.id):
        number = getattr(device, "slice_index", None)
        found.setdefault(device.process_index if number is None else number, []).append(device)
    return [found[number] for number in sorted(found)]
