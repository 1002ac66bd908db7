"""Where a program runs: PJRT devices, and the torch device that shares their memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax

from xla_dynamo.runtime.jaxlib_private import Buffer, platform_of
from xla_dynamo.runtime.mesh import Sharding

if TYPE_CHECKING:  # exported programs run in processes that have no torch
    import torch


class DeviceTensors(Protocol):
    """Tensors of a device whose contents are PJRT buffers, as the lazy 'xla' device's are.

    Attributes:
        in_use: held while buffers are read or written.
        generator: where programs take their seeds from.
    """

    in_use: Any  # a lock, as of threading
    generator: torch.Generator

    def buffers_of(self, args: Sequence[torch.Tensor], given: Collection[int]) -> list[Buffer]:
        """The buffers of the arguments of a program, each in the layout of its strides.

        Those of the arguments `given`, by number, are the program's own to write into.
        """

    def sharding_of(self, tensor: torch.Tensor) -> Sharding | None:
        """How the elements of a tensor lie over several devices; None where they lie on one."""

    def mark(self, tensor: torch.Tensor, sharding: Sharding | None) -> None:
        """Shard the elements of a tensor over a mesh; None lets them lie on one device."""

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Whether this process has all elements of a tensor, which is computed if it is pending.

        Where it has not, all processes read the tensor together.
        """

    def shard_of(self, tensor: torch.Tensor, device: int) -> torch.Tensor:
        """A copy, on the CPU, of what a device of this process holds of a sharded tensor.

        The device is given by its place in the mesh of `sharding_of`.
        """

    def put_shards(self, tensor: torch.Tensor, shards: Mapping[torch.Size, torch.Tensor]) -> None:
        """Give a sharded tensor the elements of its shards on this process's devices, by offsets.

        The shards are tensors of the CPU that nobody else has.
        """

    def over(self, buffer: Buffer, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """A tensor of the device with these contents, in the layout of its strides."""

    def over_memory(self, memory: torch.Tensor) -> torch.Tensor:
        """A tensor of the device with the elements of a tensor of `torch_device`."""

    def put(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        """Give a tensor of the device the elements of another."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The devices that one program runs on.

    Attributes:
        torch_device: where the memory is of the tensors that go in and come out.
        devices: the PJRT devices: one, or several of one platform for a partitioned program.
        tensors: what the tensors are where they are of a device without memory of its own.
        replicas: the devices of all processes that run the program beside each other, each on its
            own values, by their ranks; () for a program of this process alone, and for one that is
            partitioned.
        shares_memory: whether a buffer and a tensor of `torch_device` may be one memory. Where they
            may not, as on a TPU, each way is a copy.
        device: the first of them that is this process's.
        platform: their platform: "cpu", "cuda", "tpu".
        own: the indices of those that are this process's: all of them, unless the program is one
            of several processes.
        processes: the ranks of the processes that they belong to.
        has_streams: whether torch's work on the device is ordered by streams, as CUDA's is.
    """

    torch_device: torch.device
    devices: tuple[jax.Device, ...]
    tensors: DeviceTensors | None = None
    shares_memory: bool = True
    replicas: tuple[jax.Device, ...] = ()
    # Fields and not properties: a call looks them up.
    device: jax.Device = dataclasses.field(init=False)
    platform: str = dataclasses.field(init=False)
    own: tuple[int, ...] = dataclasses.field(init=False)
    processes: tuple[int, ...] = dataclasses.field(init=False)
    has_streams: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        here = self.devices[0].client.process_index()
        owners = [device.process_index for device in self.devices]
        ranks = {device.process_index for device in self.replicas or self.devices}
        own = tuple(i for i, owner in enumerate(owners) if owner == here)
        object.__setattr__(self, "own", own)
        object.__setattr__(self, "device", self.devices[own[0] if own else 0])
        object.__setattr__(self, "platform", platform_of(self.devices[0]))
        object.__setattr__(self, "processes", tuple(sorted(ranks)))
        # Programs that run in processes without torch have no device of torch's.
        on_gpu = self.torch_device is not None and self.torch_device.type == "cuda"
        object.__setattr__(self, "has_streams", on_gpu)

    def stream(self) -> int:
        """The handle of torch's current stream, where there are streams."""
        import torch

        return torch.cuda.current_stream(self.torch_device).cuda_stream
