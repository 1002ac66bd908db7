"""The shards of a marked tensor, as chunks of `torch.distributed.checkpoint`."""

from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from typing_extensions import TypeIs

from xla_dynamo.spmd import sharding_of


def shards_of(value: Any) -> list[ChunkStorageMetadata]:
    """The different shards that the devices hold of a tensor that is sharded.

    Devices that hold the same shard count once, and empty shards do not. Any other value has none.
    """
    sharding = sharding_of(value) if is_plain(value) else None
    if sharding is None or sharding.tiling().is_whole:
        return []
    boxes = {
        tuple((part.start, part.stop - part.start) for part in shard): None
        for shard in sharding.tiling().slices(value.shape)
    }
    return [
        ChunkStorageMetadata(
            offsets=torch.Size([start for start, _ in box]),
            sizes=torch.Size([size for _, size in box]),
        )
        for box in boxes
        if all(size for _, size in box)
    ]


def is_plain(value: Any) -> TypeIs[torch.Tensor]:
    """Whether a value is a tensor, and no subclass that writes itself, such as a DTensor."""
    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def part_of(tensor: torch.Tensor, shard: ChunkStorageMetadata) -> torch.Tensor:
    """A view of a shard of a tensor, without gradients."""
    ranges = zip(shard.offsets, shard.sizes, strict=True)
    return tensor.detach()[tuple(slice(start, start + size) for start, size in ranges)]
