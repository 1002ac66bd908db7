"""torch tensors to PJRT buffers and back, without copies where the platform allows."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch

from xla_dynamo.runtime.clients import devices_of
from xla_dynamo.runtime.jaxlib_private import (
    Buffer,
    buffer_address,
    buffer_from_dlpack,
    copy_to_device,
    dlpack_from_buffer,
    donatable_buffer_from_dlpack,
)
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.streams import stream_after_torch
from xla_dynamo.torch_private import from_dlpack, to_dlpack

# The C functions behind torch.utils.dlpack, which make a capsule of a tensor that requires
# gradients too (0.2 µs and 0.5 µs).
capsule_of: Callable[[torch.Tensor], Any] = to_dlpack
tensor_of_capsule: Callable[[Any], torch.Tensor] = from_dlpack

# XLA refuses arguments at other addresses.
_GPU_ALIGNMENT = 16


def import_tensor(tensor: torch.Tensor, placement: Placement, stream: int | None = None) -> Buffer:
    """A PJRT buffer over a dense row-major tensor's memory, kept alive by the buffer.

    Memory that is not aligned for the platform (64 bytes on CPU) is copied, and all memory where
    the placement shares none. With a stream, torch's current one, the buffer waits for the work
    that it has been given. Without, nothing may be left to do, or `after_torch` comes later.
    """
    if not placement.shares_memory:
        host = buffer_from_dlpack(capsule_of(tensor), devices_of("cpu")[0], None)
        return copy_to_device(host, placement.device)
    if placement.has_streams:
        if tensor.data_ptr() % _GPU_ALIGNMENT:  # jaxlib copies for the CPU alone
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        stream = None if stream is None else stream_after_torch(placement)
    return buffer_from_dlpack(capsule_of(tensor), placement.device, stream)


def import_donated(tensor: torch.Tensor, placement: Placement, stream: int | None = None) -> Buffer:
    """A PJRT buffer over a dense row-major tensor's memory, for a program to write into.

    Only where `donates_in_place`, and aligned as for `import_tensor`; elsewhere a copy.
    """
    if not (placement.shares_memory and donates_in_place(placement.device)):
        return import_tensor(tensor, placement, stream)
    return donatable_buffer_from_dlpack(capsule_of(tensor), placement.device, stream, True)


def import_undonated(
    tensor: torch.Tensor, placement: Placement, stream: int | None = None
) -> Buffer:
    """A buffer that a program was given to write into, for a tensor that must not change.

    A GPU's program writes into every such buffer. On the CPU a buffer of `import_tensor` is only
    lent, and PJRT copies it.
    """
    return import_tensor(tensor.clone() if placement.has_streams else tensor, placement, stream)


@functools.cache
def donates_in_place(device: jax.Device) -> bool:
    """Whether jaxlib gives a program torch's own memory to write into: looked up by trying."""
    if device.platform != "cpu":
        return False
    probe = torch.zeros(64)
    try:
        buffer = donatable_buffer_from_dlpack(capsule_of(probe), device, None, True)
    except (TypeError, ValueError, jax.errors.JaxRuntimeError):
        return False
    return buffer_address(buffer) == probe.data_ptr()


def export_buffer(buffer: Buffer, stream: int | None = None) -> torch.Tensor:
    """A tensor over a buffer's memory, which waits until the buffer has its value."""
    return tensor_of_capsule(dlpack_from_buffer(buffer, stream))


def download(buffer: Buffer) -> torch.Tensor:
    """A tensor of the host with a copy of a buffer's elements, wherever the buffer is."""
    return export_buffer(copy_to_device(buffer, devices_of("cpu")[0]))


def exporter(placement: Placement) -> Callable[[Buffer, int | None], torch.Tensor]:
    """The function that makes a tensor of a buffer and torch's stream."""
    return export_buffer if placement.shares_memory else lambda buffer, _: download(buffer)
