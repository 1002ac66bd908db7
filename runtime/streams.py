"""The order of torch's work and PJRT's on a GPU, whose streams do not wait for each other.

PJRT runs programs on streams of its own. A program waits for the events of its arguments, and an
imported tensor's event can only be on a stream that PJRT made for this. So that stream is made to
wait for torch's. One such argument is enough: it also orders what a program does to memory that
torch has freed, or that a parameter had when its buffer was imported.
"""

import functools
import threading
from collections.abc import Sequence

import jax
import torch

from xla_dynamo.runtime.jaxlib_private import (
    Buffer,
    buffer_from_dlpack,
    dlpack_from_buffer,
    stream_of_imports,
)
from xla_dynamo.runtime.placement import Placement


class _Marks(threading.local):
    """For each device the event that this thread records at each call (2 µs; a new one 12)."""

    def __init__(self) -> None:
        self.of_device = functools.cache(lambda device: torch.cuda.Event())


_marks = _Marks()


@functools.cache
def _stream_of_imports(
    device: jax.Device, torch_device: torch.device
) -> tuple[int, torch.cuda.ExternalStream]:
    handle = stream_of_imports(device)
    return handle, torch.cuda.ExternalStream(handle, torch_device)


def stream_after_torch(placement: Placement) -> int:
    """A stream of PJRT's, for imports, that waits for all work of torch's current stream so far."""
    handle, stream = _stream_of_imports(placement.device, placement.torch_device)
    mark = _marks.of_device(placement.torch_device)
    mark.record(torch.cuda.current_stream(placement.torch_device))
    stream.wait_event(mark)
    return handle


def after_torch(buffers: Sequence[Buffer], placement: Placement) -> Sequence[Buffer]:
    """The arguments of a program, which begins when torch has done what it was given before."""
    if not buffers or len(placement.devices) > 1:
        wait_for_torch(placement)
        return buffers
    stream = stream_after_torch(placement)
    # The capsule waits for nothing: whatever the buffer still waits for, the program does too.
    first = buffer_from_dlpack(dlpack_from_buffer(buffers[0], None), placement.device, stream)
    return [first, *buffers[1:]]


def wait_for_torch(placement: Placement) -> None:
    """Wait, on the host, until torch's current stream has done all of its work."""
    torch.cuda.current_stream(placement.torch_device).synchronize()
