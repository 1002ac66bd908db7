"""The placement of a torch device, and the PJRT clients behind it, made as configured."""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from xla_dynamo.errors import OptionError, ProcessError, ShardingError, UnsupportedTensor
from xla_dynamo.runtime import forks
from xla_dynamo.runtime.cpu.host_memory import keep_freed_memory
from xla_dynamo.runtime.jaxlib_private import device_numbers, make_cpu_client, numbered_devices
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.runtime.placement import DeviceTensors, Placement
from xla_dynamo.runtime.processes import job
from xla_dynamo.switches import warn_of_unknown
from xla_dynamo.switches.others import PREALLOCATE, XLA_FLAGS
from xla_dynamo.switches.pytorch_xla import CPU_NUM_DEVICES, MOST_CPU_DEVICES

if TYPE_CHECKING:  # exported programs run in processes that have no torch
    import torch

_PLATFORMS = {"cpu": "cpu", "cuda": "cuda"}
_FLAG = "--xla_force_host_platform_device_count"


@dataclasses.dataclass(frozen=True, slots=True)
class ClientConfiguration:
    """How the clients of this process are made.

    Attributes:
        cpu_devices: as how many devices the CPU appears. PyTorch/XLA has the environment variable
            CPU_NUM_DEVICES for it, and so does this.
        preallocates: whether XLA claims three quarters of a GPU's memory at once. torch's own
            allocator lives on the same GPU, so it does not, unless the environment variable
            XLA_PYTHON_CLIENT_PREALLOCATE says so.
        shares_memory: whether tensors and buffers may be one memory. False copies each, as on
            platforms that torch has no device for: to find out whether a fault comes of sharing.
    """

    cpu_devices: int = 1
    preallocates: bool = False
    shares_memory: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.cpu_devices, int) or not 1 <= self.cpu_devices <= MOST_CPU_DEVICES:
            raise OptionError(
                f"cpu_devices must be an integer from 1 to {MOST_CPU_DEVICES}, not "
                f"{self.cpu_devices!r}"
            )

    @classmethod
    def from_environment(cls) -> ClientConfiguration:
        """The configuration in the environment variables.

        The number of CPU devices is in CPU_NUM_DEVICES, or in XLA_FLAGS, where JAX has it.

        Raises:
            OptionError: CPU_NUM_DEVICES is no positive integer, or the number is too large.
        """
        flag = re.search(rf"{_FLAG}=(\d+)", XLA_FLAGS.get())
        devices = CPU_NUM_DEVICES.get() or (int(flag[1]) if flag else 1)
        return cls(devices, PREALLOCATE.get() == "true")


_lock = threading.RLock()
# Devices of torch whose tensors have their memory elsewhere, and what says where.
_without_memory: dict[str, tuple[Callable[[], Placement], DeviceTensors]] = {}
_configuration: ClientConfiguration | None = None
_clients: dict[str, list[jax.Device]] = {}


def configure(configuration: ClientConfiguration) -> None:
    """Say how clients are to be made, before the first graph is compiled.

    Raises:
        OptionError: there is a client already, of another configuration.
    """
    global _configuration
    with _lock:
        if _clients and configuration != _configuration:
            raise OptionError(
                f"PJRT clients were made as {_configuration} already, and cannot become "
                f"{configuration}: configure them before anything is compiled"
            )
        _configuration = configuration


def set_device_count(devices: int) -> None:
    """Let the CPU appear as so many devices, to try on one machine what is meant for many.

    To be called before anything is compiled. The environment variable CPU_NUM_DEVICES does the
    same, and so does XLA_FLAGS=--xla_force_host_platform_device_count=8.

    Raises:
        OptionError: there is a client already, of another number of devices.
    """
    with _lock:
        now = _configuration or ClientConfiguration.from_environment()
        configure(dataclasses.replace(now, cpu_devices=devices))


def register_device(
    device_type: str, placement: Callable[[], Placement], tensors: DeviceTensors
) -> None:
    """Let graphs of tensors of a device run where the device's tensors have their contents."""
    _without_memory[device_type] = placement, tensors


def tensors_on(device_type: str) -> DeviceTensors | None:
    """The tensors of a device whose contents are buffers; None for a device of torch's."""
    _, tensors = _without_memory.get(device_type, (None, None))
    return tensors


def devices_of(platform: str) -> list[jax.Device]:
    """The devices of a PJRT platform; the first call makes its client.

    Raises:
        RuntimeError: there is no PJRT plugin for it.
    """
    global _configuration
    with _lock:
        if platform not in _clients:
            warn_of_unknown()
            if _configuration is None:
                _configuration = ClientConfiguration.from_environment()
            made = _make_client(platform, _configuration)
            forks.watch(made[0].client)
            _clients[platform] = made
        return _clients[platform]


def devices_of_all(platform: str) -> list[jax.Device]:
    """The devices of a PJRT platform in all processes; an id in a mesh is an index in this list.

    Raises:
        RuntimeError: there is no PJRT plugin for it.
    """
    return numbered_devices(devices_of(platform)[0].client)


def numbers_of(placement: Placement) -> list[int]:
    """The ids in a mesh of the devices of a placement."""
    numbers = device_numbers(placement.device.client)
    return [numbers[device.id] for device in placement.devices]


def live_executables() -> list[Any]:
    """PJRT's executables that live, on all platforms."""
    return [e for devices in _clients.values() for e in devices[0].client.live_executables()]


def has_clients() -> bool:
    """Whether there is a client of PJRT in this process."""
    return bool(_clients)


def _make_client(platform: str, configuration: ClientConfiguration) -> Any:
    if platform == "cpu":
        keep_freed_memory()
        here, count = job.joined(), configuration.cpu_devices
        if here is None:
            return make_cpu_client(count).local_devices()
        return make_cpu_client(count, here.seat, here.service, here.host).local_devices()
    if PREALLOCATE.text() is None:
        PREALLOCATE.put("true" if configuration.preallocates else "false")
    return jax.local_devices(backend=platform)


@functools.cache
def placement_at(device_type: str, index: int) -> Placement:
    """The placement on the one PJRT device that shares its memory with a torch device.

    Raises:
        UnsupportedTensor: there is no PJRT plugin for this type of device.
    """
    import torch

    if device_type in _without_memory:
        placement, tensors = _without_memory[device_type]
        return dataclasses.replace(placement(), tensors=tensors)
    if device_type not in _PLATFORMS:
        known = ", ".join(_PLATFORMS)
        raise UnsupportedTensor(
            f"no PJRT platform for tensors on {device_type!r}; move the model and its inputs to "
            f"one of: {known}"
        )
    platform = _PLATFORMS[device_type]
    try:
        devices = devices_of(platform)
    except RuntimeError as error:
        raise UnsupportedTensor(
            f"tensors on {device_type!r} need a PJRT plugin for {platform}, which is not "
            f"installed: pip install 'xla-dynamo[{platform}]' ({error})"
        ) from error
    by_hardware_id = {d.local_hardware_id or 0: d for d in devices}
    shares = _configuration is None or _configuration.shares_memory
    if device_type == "cpu":  # torch has one CPU, whose memory all of PJRT's CPU devices share
        return Placement(torch.device("cpu"), (devices[0],), shares_memory=shares)
    device = by_hardware_id[index]
    return Placement(torch.device(device_type, index), (device,), shares_memory=shares)


def placement_of(device: torch.device) -> Placement:
    """`placement_at` of a torch.device; no index means torch's current device of that type."""
    index = device.index
    if index is None:
        import torch

        index = torch.cuda.current_device() if device.type == "cuda" else 0
    return placement_at(device.type, index)


@functools.cache
def placement_over(mesh: Mesh, one: Placement) -> Placement:
    """The placement on the devices of a mesh, of the platform and with the tensors of another.

    Raises:
        ShardingError: there are no such devices.
    """
    known = devices_of_all(one.platform)
    if missing := [i for i in mesh.ids if not 0 <= i < len(known)]:
        few = f"call xla_dynamo.runtime.set_device_count({max(mesh.ids) + 1}) before anything "
        few += f"is compiled, or set CPU_NUM_DEVICES={max(mesh.ids) + 1}"
        raise ShardingError(
            f"{mesh} has the devices {missing}, and the platform {one.platform!r} has "
            f"{[*range(len(known))]}" + (f": {few}" if one.platform == "cpu" else "")
        )
    return dataclasses.replace(one, devices=tuple(known[i] for i in mesh.ids))


def placement_beside(ranks: Sequence[int], one: Placement) -> Placement:
    """The placement of a program that processes run beside each other, on a device each.

    Raises:
        ProcessError: this process has not joined the others, or is none of them.
    """
    here = job.joined()
    if here is None or here.seat.rank not in ranks or max(ranks) >= here.seat.size:
        now = "it has not joined any" if here is None else f"it is {here.seat.rank}"
        raise ProcessError(
            f"a program exchanges values with the processes {list(ranks)}, of which this one must "
            f"be one, and {now}: start the processes by xla_dynamo.launch, or join them by "
            "runtime.initialize_processes()"
        )
    first: dict[int, jax.Device] = {}
    for device in devices_of_all(one.platform):
        first.setdefault(device.process_index, device)
    return dataclasses.replace(one, replicas=tuple(first[rank] for rank in ranks))


def placement_on(platform: str) -> Placement:
    """The placement on the first device of a PJRT platform, where torch has such a device or not.

    Raises:
        RuntimeError: there is no PJRT plugin for the platform.
    """
    import torch

    devices = devices_of(platform)
    if platform == "cpu" or (platform == "cuda" and torch.cuda.is_available()):
        return placement_at(platform, 0)
    return Placement(torch.device("cpu"), (devices[0],), shares_memory=False)
