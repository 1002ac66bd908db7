"""Names of `torch_xla.core.xla_model` for replicas, each of which is a process with one device."""

from collections.abc import Sequence
from typing import Any, TypedDict

import torch

import xla_dynamo
from xla_dynamo.errors import ProcessError
from xla_dynamo.process_state import kept
from xla_dynamo.runtime.processes.job import joined

_SECONDS = 600.0  # as long as a process may come later than the others


class DeviceContext:
    """A device that takes part in replication.

    Attributes:
        device: its name.
        device_index: its index among the devices of this process: 0.
    """

    def __init__(self, device: torch.device | str) -> None:
        """Take the device."""
        self.device, self.device_index = device, 0


class MemoryInfo(TypedDict, total=False):
    """What `get_memory_info` returns: numbers of bytes, of which a platform may tell some."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int


def xla_replication_devices(local_devices: Sequence[Any] | None = None) -> list[str]:
    """The PJRT devices that run one program together: one of each process, as "CPU:0".

    Raises:
        RuntimeError: other devices are given than those of this process.
    """
    known = xla_dynamo.devices()
    given = known if local_devices is None else [torch.device(d) for d in local_devices]
    if given != known:
        raise RuntimeError(
            f"cannot replicate over {[str(d) for d in given]}: each process has one device, "
            f"'{known[0]}'; start more processes by torch_xla.launch"
        )
    kind = xla_dynamo.xla_device_hw(known[0])
    return [f"{kind}:{rank}" for rank in range(xla_dynamo.xrt_world_size())]


def set_replication(device: torch.device | str, devices: Sequence[Any] | None) -> None:
    """Check that a program can run on these devices, as the processes of a job do in any case.

    Raises:
        RuntimeError: other devices are given than those of this process.
    """
    xla_dynamo.xla_device_hw(device)
    if devices:
        xla_replication_devices(devices)


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """End the step, and wait until processes have come here.

    Args:
        payload: what this process brings.
        ordinals: the ranks that come; all of them unless given.
        tag: a name for messages.

    Returns:
        What each has brought, by rank.

    Raises:
        TypeError: the payload is not `bytes`.
        ProcessError: a process is gone, or late, or has come to something else.
    """
    if not isinstance(payload, bytes):
        raise TypeError(f"payload is bytes, and not {type(payload).__name__}")
    xla_dynamo.sync()
    return xla_dynamo.rendezvous(tag or "xla_rendezvous", payload, tuple(ordinals or ()))


class _Channels:
    """How many tensors this process has sent and received, by the number of the channel."""

    def __init__(self) -> None:
        self.sent: dict[int, int] = {}
        self.received: dict[int, int] = {}
        self.own: dict[str, bytes] = {}  # of a process that is alone


_channels = kept(_Channels)


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Send the elements of a tensor over a channel; some process calls `recv` with its number.

    They go through the host's memory. `collective_permute` is faster, where all processes call it.

    Args:
        value: a tensor of any shape and dtype. It is computed here.
        channel_id: the number of the channel. What is sent first is received first.

    Returns:
        The tensor.
    """
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    _put(_next(_channels.sent, channel_id), content)
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Wait for what another process sends over a channel.

    Args:
        output: a tensor of the shape and the dtype that is sent.
        channel_id: the number of the channel.

    Returns:
        A new tensor, on the device of the other.

    Raises:
        ProcessError: nothing was sent, or something of another size.
    """
    place = _next(_channels.received, channel_id)
    content = _take(place)
    if len(content) != output.numel() * output.element_size():
        raise ProcessError(
            f"channel {channel_id} has brought {len(content)} bytes, and a tensor of shape "
            f"{tuple(output.shape)} and dtype {output.dtype} is expected"
        )
    if not content:
        return torch.empty_like(output)
    elements = torch.frombuffer(bytearray(content), dtype=output.dtype).reshape(output.shape)
    return elements.to(output.device)


def _next(counted: dict[int, int], channel: int) -> str:
    counted[channel] = counted.get(channel, 0) + 1
    return f"xla_dynamo channel {channel} number {counted[channel]}"


def _put(place: str, content: bytes) -> None:
    job = joined()
    if job is None:
        _channels.own[place] = content
    else:
        job.service.key_value_set_bytes(place, content)


def _take(place: str) -> bytes:
    job = joined()
    if job is None:
        if place not in _channels.own:
            raise ProcessError(f"this process is alone, and has not sent anything: {place}")
        return _channels.own.pop(place)
    try:
        content = job.service.blocking_key_value_get_bytes(place, int(_SECONDS * 1000))
    except RuntimeError as error:
        raise job.error(f"nothing has come over {place}: {error}") from error
    job.service.key_value_delete(place)
    return bytes(content)
