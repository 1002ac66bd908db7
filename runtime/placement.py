"""Where a program runs: PJRT devices, and the torch device that shares their memory."""

import dataclasses

import jax
import torch


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The devices that one program runs on.

    Attributes:
        torch_device: where the tensors are that go in and come out.
        devices: the PJRT devices: one, or several of one platform for a program that is divided.
        device: the first of them.
        platform: their platform: "cpu", "cuda", "tpu".
    """

    torch_device: torch.device
    devices: tuple[jax.Device, ...]
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
