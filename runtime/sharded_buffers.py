"""torch tensors to buffers of several devices, and back."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.buffers import exporter, import_tensor
from xla_dynamo.runtime.clients import placement_over
from xla_dynamo.runtime.executables import taking_turns
from xla_dynamo.runtime.jaxlib_private import (
    Buffer,
    array_over,
    copy_to_device,
    moved_over_processes,
    sharding_of,
    shards_of,
)
from xla_dynamo.runtime.mesh import Mesh, Sharding, Tiling
from xla_dynamo.runtime.placement import Placement


def import_sharded(tensor: torch.Tensor, sharding: Sharding, placement: Placement) -> Buffer:
    """A buffer of a mesh's devices with the elements of a row-major tensor.

    Over several processes, each has the whole tensor, and gives its own devices their shards.

    On the CPU, whose devices have one memory, a shard that is contiguous is a view of the tensor,
    and so is the whole of a tensor that is not sharded.
    """
    slices = sharding.tiling().slices(tensor.shape)
    shards = [tensor[slices[i]].contiguous() for i in placement.own]
    return import_shards(shards, tensor.shape, sharding, placement)


def import_shards(
    shards: Sequence[torch.Tensor], shape: Sequence[int], sharding: Sharding, placement: Placement
) -> Buffer:
    """A buffer of a mesh's devices, given the row-major shards of this process's, in order."""
    own = [placement.devices[i] for i in placement.own]
    buffers = [_import_shard(*one, placement) for one in zip(shards, own, strict=True)]
    return array_over(shape, sharding, placement.devices, buffers)


def import_part(tensor: torch.Tensor, sharding: Sharding, placement: Placement) -> Buffer:
    """A buffer of a mesh's devices, of which each process has some rows, a row-major tensor.

    Its first dimension is as many times larger as there are processes with other rows. The rows of
    a process are those that its devices have shards of, in their order.

    Raises:
        ShardingError: they do not shard evenly.
    """
    tiling = sharding.tiling()
    numbers = sorted({tiling.shards[i][0] for i in placement.own})
    rows, left = divmod(tensor.shape[0], len(numbers))
    shape = (rows * tiling.counts[0], *tensor.shape[1:])
    if left or not sharding.shards_evenly(shape):
        raise ShardingError(
            f"this process's part of a batch has the shape {tuple(tensor.shape)}, and the whole "
            f"{shape}, which {sharding} does not shard evenly: {len(numbers)} of its "
            f"{tiling.counts[0]} shards along dimension 0 are on the devices of this process"
        )
    shards = []
    for i in placement.own:
        first, *rest = tiling.slices(shape)[i]
        start = numbers.index(tiling.shards[i][0]) * rows
        shard = tensor[(slice(start, start + first.stop - first.start), *rest)]
        shards.append(shard.contiguous())
    return import_shards(shards, shape, sharding, placement)


def _import_shard(shard: torch.Tensor, device: jax.Device, placement: Placement) -> Buffer:
    if placement.platform == "cpu":
        return import_tensor(shard, dataclasses.replace(placement, devices=(device,)))
    stream = placement.stream() if placement.has_streams else None
    return copy_to_device(import_tensor(shard, placement, stream), device)


def is_here(tiling: Tiling, placement: Placement) -> bool:
    """Whether this process's devices have all shards of an array between them."""
    return len({tiling.shards[i] for i in placement.own}) == math.prod(tiling.counts)


def export_sharded(
    shards: Sequence[Buffer], tiling: Tiling, shape: Sequence[int], placement: Placement
) -> torch.Tensor:
    """A tensor of `placement.torch_device` with the elements of a sharded array.

    Where this process's devices do not have all of it, every process calls this.
    """
    tensor_of = exporter(placement)
    if tiling.is_whole:
        return tensor_of(shards[0], None)
    own = [tiling.shards[i] for i in placement.own]
    if not is_here(tiling, placement):
        return tensor_of(shards_of(_whole(shards, tiling, shape, placement))[0], None)
    slices = [tiling.slices(shape)[i] for i in placement.own]
    made: torch.Tensor | None = None
    done = set()
    for shard, where, number in zip(shards, slices, own, strict=True):
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
    over = placement_over(sharding.mesh, placement)
    return export_sharded(shards_of(buffer), sharding.tiling(), buffer.shape, over)


def spread(buffer: Buffer, sharding: Sharding, placement: Placement) -> Buffer:
    """A buffer of a mesh's devices with the elements of a buffer of one device or of many."""
    now = sharding_of(buffer)
    if now == sharding:
        return buffer
    if (
        now is not None and now.mesh.ids == sharding.mesh.ids and now.tiling() == sharding.tiling()
    ):  # by axes of other names
        return array_over(buffer.shape, sharding, placement.devices, shards_of(buffer))
    if now is not None and len(placement.processes) > 1:
        if set(now.mesh.ids) != set(sharding.mesh.ids):
            raise ShardingError(
                f"a tensor of shape {tuple(buffer.shape)} lies over {now.mesh}, and a program of "
                f"{sharding.mesh} reads it: over several processes, use meshes of the same devices"
            )
        tiling = now.tiling()
        if now.mesh.ids != sharding.mesh.ids:
            order = [now.mesh.ids.index(i) for i in sharding.mesh.ids]
            own = dict(zip(placement_over(now.mesh, placement).own, shards_of(buffer), strict=True))
            shards = [own[order[i]] for i in placement.own]
            tiling = Tiling(tiling.counts, tuple(tiling.shards[i] for i in order))
            return _moved(shards, tiling, buffer.shape, sharding, placement)
        return _moved(shards_of(buffer), tiling, buffer.shape, sharding, placement)
    return import_sharded(gathered(buffer, placement), sharding, placement)


def _moved(
    shards: Sequence[Buffer],
    tiling: Tiling,
    shape: Sequence[int],
    sharding: Sharding,
    placement: Placement,
) -> Buffer:
    """A buffer of the devices of several processes, all of which call this, sharded anew."""
    about = f"the move of {shards[0].dtype}{list(shape)} to {sharding}"
    same = repr((tiling, tuple(shape), str(shards[0].dtype), sharding)).encode()
    with taking_turns(placement.processes, about, same):
        return moved_over_processes(shape, tiling, list(shards), sharding, placement.devices)


def _whole(
    shards: Sequence[Buffer], tiling: Tiling, shape: Sequence[int], placement: Placement
) -> Buffer:
    mesh = Mesh(range(len(placement.devices)), (len(placement.devices),))
    whole = Sharding(mesh, ((),) * len(shape))
    return _moved(shards, tiling, shape, whole, placement)


def assembled(
    shards: list[Buffer], tiling: Tiling, shape: Sequence[int], mesh: Mesh, placement: Placement
) -> Buffer:
    """A buffer of a mesh's devices that consists of the shards of a program's result.

    What whole axes of the mesh do not shard evenly becomes whole on each device.
    """
    sharding = tiling.on(mesh, len(shape))
    if sharding is None or not sharding.shards_evenly(shape):
        whole = Sharding(mesh, ((),) * len(shape))
        if len(placement.processes) > 1:
            return _moved(shards, tiling, shape, whole, placement)
        return import_sharded(export_sharded(shards, tiling, shape, placement), whole, placement)
    return array_over(shape, sharding, placement.devices, shards)


def _reachable(shard: Buffer, placement: Placement) -> Buffer:
    """The shard, or a copy of it on the device that shares its memory with torch's."""
    if placement.platform == "cpu" or not placement.shares_memory:
        return shard
    return copy_to_device(shard, placement.device)
