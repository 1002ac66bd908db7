"""torch tensors to buffers of several devices, and back."""

import dataclasses
from collections.abc import Sequence

import jax
import torch

from xla_dynamo.runtime.buffers import exporter, import_tensor
from xla_dynamo.runtime.jaxlib_private import (
    Buffer,
    array_over,
    copy_to_device,
    sharding_of,
    shards_of,
)
from xla_dynamo.runtime.mesh import Mesh, Sharding, Tiling
from xla_dynamo.runtime.placement import Placement


def import_sharded(tensor: torch.Tensor, sharding: Sharding, placement: Placement) -> Buffer:
    """A buffer of a mesh's devices with the elements of a row-major tensor.

    On the CPU, whose devices have one memory, a shard that is contiguous is a view of the tensor,
    and so is the whole of a tensor that is not sharded.
    """
    slices = sharding.tiling().slices(tensor.shape)
    shards = [
        _import_shard(tensor[where].contiguous(), device, placement)
        for where, device in zip(slices, placement.devices, strict=True)
    ]
    return array_over(tensor.shape, sharding, placement.devices, shards)


def _import_shard(shard: torch.Tensor, device: jax.Device, placement: Placement) -> Buffer:
    if placement.platform == "cpu":
        return import_tensor(shard, dataclasses.replace(placement, devices=(device,)))
    stream = placement.stream() if placement.has_streams else None
    return copy_to_device(import_tensor(shard, placement, stream), device)


def export_sharded(
    shards: Sequence[Buffer], tiling: Tiling, shape: Sequence[int], placement: Placement
) -> torch.Tensor:
    """A tensor of `placement.torch_device` with the elements of a sharded array."""
    tensor_of = exporter(placement)
    if tiling.is_whole:
        return tensor_of(shards[0], None)
    made: torch.Tensor | None = None
    done = set()
    for shard, where, number in zip(shards, tiling.slices(shape), tiling.shards, strict=True):
        if number in done:
            continue
        done.add(number)
        elements = tensor_of(_reachable(shard, placement), None)
        if made is None:
            made = torch.empty(shape, dtype=elements.dtype, device=elements.device)
        # The last shards may be padded, to the size of the others.
        made[where] = elements[tuple(slice(s.stop - s.start) for s in where)]
    assert made is not None
    return made


def gathered(buffer: Buffer, placement: Placement) -> torch.Tensor:
    """A tensor of `placement.torch_device` with the elements of a buffer of one or many devices.

    It may be the buffer's own memory.
    """
    sharding = sharding_of(buffer)
    if sharding is None:
        return exporter(placement)(buffer, placement.stream() if placement.has_streams else None)
    return export_sharded(shards_of(buffer), sharding.tiling(), buffer.shape, placement)


def spread(buffer: Buffer, sharding: Sharding, placement: Placement) -> Buffer:
    """A buffer of a mesh's devices with the elements of a buffer of one device or of many."""
    now = sharding_of(buffer)
    if now == sharding:
        return buffer
    if (
        now is not None
        and now.mesh.device_ids == sharding.mesh.device_ids
        and now.tiling() == sharding.tiling()
    ):  # by axes of other names
        return array_over(buffer.shape, sharding, placement.devices, shards_of(buffer))
    return import_sharded(gathered(buffer, placement), sharding, placement)


def assembled(
    shards: list[Buffer], tiling: Tiling, shape: Sequence[int], mesh: Mesh, placement: Placement
) -> Buffer:
    """A buffer of a mesh's devices that consists of the shards of a program's result.

    What whole axes of the mesh do not shard evenly becomes whole on each device.
    """
    sharding = tiling.on(mesh, len(shape))
    if sharding is None or not sharding.shards_evenly(shape):
        whole = Sharding(mesh, ((),) * len(shape))
        return import_sharded(export_sharded(shards, tiling, shape, placement), whole, placement)
    return array_over(shape, sharding, placement.devices, shards)


def _reachable(shard: Buffer, placement: Placement) -> Buffer:
    """The shard, or a copy of it on the device that shares its memory with torch's."""
    if placement.platform == "cpu" or not placement.shares_memory:
        return shard
    return copy_to_device(shard, placement.device)
