"""Where a program runs: PJRT devices, and the torch device that shares their memory."""

import dataclasses
from typing import Any, Protocol

import jax
import torch


class DeviceTensors(Protocol):
    """Tensors of a device whose memory is that of other tensors, as the lazy 'xla' device's is.

    Attributes:
        in_use: held while the memory of some is read or written.
        generator: where programs take their seeds from.
    """

    in_use: Any  # a lock, as of threading
    generator: torch.Generator

    def memory_of(self, args: list[Any], *, changes: bool) -> list[Any]:
        """The arguments of a call, with the memory of those that are on the device.

        `changes` tells that the program writes into some of it.
        """

    def over(self, memory: torch.Tensor) -> torch.Tensor:
        """A tensor of the device with this memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The devices that one program runs on.

    Attributes:
        torch_device: where the memory is of the tensors that go in and come out.
        devices: the PJRT devices: one, or several of one platform for a program that is divided.
        tensors: what the tensors are where they are of a device without memory of its own.
        device: the first of them.
        platform: their platform: "cpu", "cuda", "tpu".
    """

    torch_device: torch.device
    devices: tuple[jax.Device, ...]
    tensors: DeviceTensors | None = None
    # Fields and not properties: a call looks them up.
    device: jax.Device = dataclasses.field(init=False)
    platform: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", self.devices[0])
        object.__setattr__(self, "platform", self.devices[0].platform)

    @property
    def has_streams(self) -> bool:
        """Whether torch's work on the device is ordered by streams, as CUDA's is."""
        return self.torch_device.type == "cuda"

    def stream(self) -> int:
        """The handle of torch's current stream, where there are streams."""
        return torch.cuda.current_stream(self.torch_device).cuda_stream
