"""The shards of a marked tensor, as chunks of `torch.distributed.checkpoint`."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from typing_extensions import TypeIs

from xla_dynamo.runtime.clients import placement_over, tensors_on
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.placement import DeviceTensors
from xla_dynamo.runtime.processes import job
from xla_dynamo.runtime.topology import default_placement
from xla_dynamo.spmd import sharding_of


@dataclasses.dataclass(frozen=True)
class Shard:
    """A shard of a tensor.

    Attributes:
        chunk: where it lies in the tensor.
        device: a device that holds it, by its place in the mesh.
    """

    chunk: ChunkStorageMetadata
    device: int


def shards_of(value: Any, own: bool = False) -> list[Shard] | None:
    """The different shards that devices hold of a tensor that is sharded.

    Devices that hold the same shard count once, and empty shards do not. None for any other value,
    and for a tensor without elements.

    Args:
        value: anything.
        own: whether those of this process's devices are wanted, and not those of all.
    """
    sharding = (memory_sharding(value) or sharding_of(value)) if is_plain(value) else None
    if sharding is None or sharding.tiling().is_whole or not value.numel():
        return None
    slices = sharding.tiling().slices(value.shape)
    numbers = _own_devices(sharding) if own else range(len(slices))
    boxes: dict[tuple[tuple[int, int], ...], int] = {}
    for device in numbers:
        boxes.setdefault(tuple((s.start, s.stop - s.start) for s in slices[device]), device)
    return [
        Shard(
            ChunkStorageMetadata(
                offsets=torch.Size([start for start, _ in box]),
                sizes=torch.Size([size for _, size in box]),
            ),
            device,
        )
        for box, device in boxes.items()
        if all(size for _, size in box)
    ]


def memory_sharding(tensor: torch.Tensor) -> Sharding | None:
    """How a tensor's memory lies over devices; None where it is whole, and on the CPU always."""
    tensors = device_tensors(tensor)
    sharding = tensors.sharding_of(tensor) if tensors is not None else None
    return None if sharding is None or sharding.tiling().is_whole else sharding


def is_here(tensor: torch.Tensor) -> bool:
    """Whether this process has all elements of a tensor: not of a view of one in shards."""
    tensors = device_tensors(tensor)
    return tensors is None or tensors.is_here(tensor)


def device_tensors(tensor: torch.Tensor) -> DeviceTensors | None:
    """What reaches the shards of a tensor that has no memory of its own; None for others."""
    return tensors_on(tensor.device.type)


def _own_devices(sharding: Sharding) -> Iterable[int]:
    """The devices of this process, by their places in the mesh."""
    if job.joined() is None:
        return range(sharding.mesh.size())
    return placement_over(sharding.mesh, default_placement()).own


def is_plain(value: Any) -> TypeIs[torch.Tensor]:
    """Whether a value is a tensor, and no subclass that writes itself, such as a DTensor."""
    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def part_of(tensor: torch.Tensor, shard: ChunkStorageMetadata) -> torch.Tensor:
    """A view of a shard of a tensor, without gradients."""
    ranges = zip(shard.offsets, shard.sizes, strict=True)
    return tensor.detach()[tuple(slice(start, start + size) for start, size in ranges)]
