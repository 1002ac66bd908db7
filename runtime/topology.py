"""The devices and processes of the job, under the names of PyTorch/XLA's `runtime`.

What it calls a runtime device is a device of PJRT. What it calls a device is one of torch: here
there is one, 'xla:0', as in PyTorch/XLA's SPMD mode.
"""

import functools
from typing import Any

import jax
import torch

from xla_dynamo.errors import OptionError
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import marks
from xla_dynamo.runtime.clients import devices_of, has_clients, placement_on
from xla_dynamo.runtime.jaxlib_private import connect_to_coordination_service, numbered_devices
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.processes import job
from xla_dynamo.runtime.processes.environment import Seat
from xla_dynamo.switches.pytorch_xla import AUTO_SPMD, PJRT_DEVICE


class _Asked:
    def __init__(self) -> None:
        self.spmd = False  # by `use_spmd`
        self.auto = False  # by `use_spmd(auto=True)`


_asked = kept(_Asked)


def _chosen_platform() -> str:
    return PJRT_DEVICE.get() or ("cuda" if torch.cuda.is_available() else "cpu")


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
    PJRT_DEVICE.put(pjrt_device)


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
    every = numbered_devices(default_devices()[0].client)
    return [_attributes(number, device) for number, device in enumerate(every)]


def runtime_device_attributes(device: str) -> dict[str, Any]:
    """What is known of one PJRT device, such as "CPU:3".

    Raises:
        OptionError: there is no such device.
    """
    known = {attributes["name"]: attributes for attributes in global_runtime_device_attributes()}
    if device.upper() not in known:
        raise OptionError(f"there is no device {device!r}, but {', '.join(known)}")
    return known[device.upper()]


def _attributes(number: int, device: jax.Device) -> dict[str, Any]:
    told = ("coords", "core_on_chip", "slice_index")
    attributes = {name: getattr(device, name, None) for name in told}
    known = {name: value for name, value in attributes.items() if value is not None}
    return {"name": f"{device_type()}:{number}", **known}


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
    """The number of this process among those of this host, from 0."""
    return job.seat().local_rank


def process_index() -> int:
    """The number of this process, from 0."""
    return job.seat().rank


def process_count() -> int:
    """The number of processes of the job, as they have joined or as their launcher says."""
    return job.seat().size


def local_process_count() -> int:
    """The number of processes of the job on this host."""
    return job.seat().local_size


def use_spmd(auto: bool = False) -> None:
    """Say that programs are partitioned over devices: as marks say, or as is found to be best.

    Where the environment tells of several processes, this one joins them (`initialize_processes`),
    and meshes go over the devices of all.

    Args:
        auto: whether programs on tensors of the device 'xla' choose shardings for what has none
            (see `spmd.auto_sharding`), as the environment variable XLA_AUTO_SPMD=1 says, too.
    """
    initialize_processes()
    _asked.spmd = True
    _asked.auto = _asked.auto or auto


def initialize_processes(
    patience: float | None = None, *, told: tuple[Seat, Any] | None = None
) -> None:
    """Join the other processes of the job, so that PJRT's devices are those of all.

    All of them call it, before anything is compiled. `xla_dynamo.launch`, `use_spmd` and
    `torch.distributed.init_process_group("xla")` do. In a process that was started alone, nothing
    happens.

    Args:
        patience: how many seconds a process may come later than the others to a program that they
            run together. 600 unless given; the last call that gives it counts for all.
        told: which process this is, where the environment does not tell, and torch's store in
            which all meet: `init_process_group` with `rank` and `world_size` gives them.

    Raises:
        OptionError: something was compiled before, or the environment of a launcher is incomplete.
        ProcessError: not all of them have come.
    """
    seat = told[0] if told is not None else job.seat()
    if job.joined() is None and seat.size > 1 and has_clients():
        raise OptionError(
            f"process {seat.rank} of {seat.size} has used XLA by itself already: join "
            "the others first, by xla_dynamo.launch, runtime.use_spmd(), "
            "torch.distributed.init_process_group('xla') or runtime.initialize_processes()"
        )
    if job.join(connect_to_coordination_service, patience, told) is not None:
        default_devices()  # made by all at once: afterwards one may use the device by itself


def chooses_shardings() -> bool:
    """Whether programs choose shardings for what has none, as `use_spmd(auto=True)` asks for."""
    return _asked.auto or AUTO_SPMD.get()


def is_spmd() -> bool:
    """Whether `use_spmd` was called, or any tensor was marked."""
    return _asked.spmd or marks.were_ever_there()


def slices() -> list[list[jax.Device]]:
    """The PJRT devices in groups that a fast network connects, one a process where none is known.

    The platform of TPUs calls such a group a slice.
    """
    found: dict[int, list[jax.Device]] = {}
    for device in numbered_devices(default_devices()[0].client):
        number = getattr(device, "slice_index", None)
        found.setdefault(device.process_index if number is None else number, []).append(device)
    return [found[number] for number in sorted(found)]
