"""Translate `torch.distributed.tensor`'s meshes and placements into ours, and back.

A placement says for an axis of the mesh which dimension it shards; a partition spec says for a
dimension which axes shard it.
"""

from collections.abc import Sequence

import torch
from torch.distributed import is_initialized
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.spmd.partition_spec import PartitionSpec, axes_of


def mesh_from_device_mesh(device_mesh: DeviceMesh | Mesh) -> Mesh:
    """The mesh of a `DeviceMesh`, whose numbers are the ids of PJRT devices, not ranks.

    Axes without names are "axis_0" …, as those of a `Mesh`. A `Mesh` is returned as it is.

    Raises:
        ShardingError: a name of an axis is no identifier.
    """
    if isinstance(device_mesh, Mesh):
        return device_mesh
    ids = device_mesh.mesh
    return Mesh(ids.flatten().tolist(), tuple(ids.shape), device_mesh.mesh_dim_names)


def to_device_mesh(mesh: Mesh, device_type: str = "xla") -> DeviceMesh:
    """The `DeviceMesh` of a mesh, with the ids of the devices as its numbers.

    One of the type "xla" needs no process group, and describes the devices of one process. One of
    another type is a mesh of processes: the ids are their ranks.

    Raises:
        ShardingError: it is a mesh of processes, and no process group is there.
    """
    if device_type != "xla" and not is_initialized():
        raise ShardingError(
            f"a DeviceMesh of the type {device_type!r} is one of processes: call "
            "torch.distributed.init_process_group first, or take the type 'xla'"
        )
    ids = torch.tensor(mesh.ids).reshape(mesh.mesh_shape)
    of_processes = device_type != "xla"
    return DeviceMesh(device_type, ids, mesh_dim_names=mesh.axis_names, _init_backend=of_processes)


def convert_placements_to_partition_spec(
    placements: Sequence[Placement], ndim: int
) -> tuple[tuple[int, ...] | int | None, ...]:
    """The partition spec that says the same as a placement for each axis of a mesh.

    Args:
        placements: `Shard(dim)` or `Replicate()` for each axis.
        ndim: the number of dimensions of the tensor.

    Returns:
        For each dimension the number of the axis that shards it, a tuple of several, the major one
        first, or None.

    Raises:
        ShardingError: a placement is of another kind, or shards a dimension that is not there.

    >>> convert_placements_to_partition_spec([Shard(0), Replicate(), Shard(0)], 2)
    ((0, 2), None)
    """
    axes: list[list[int]] = [[] for _ in range(ndim)]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Replicate):
            continue
        if not isinstance(placement, Shard):
            raise ShardingError(
                f"{placement} of axis {axis} is no Shard or Replicate{_why(placement)}"
            )
        if not -ndim <= placement.dim < ndim:
            raise ShardingError(
                f"{placement} of axis {axis} shards dimension {placement.dim}, and the tensor has "
                f"{ndim} dimensions"
            )
        axes[placement.dim].append(axis)
    return tuple(tuple(a) if len(a) > 1 else a[0] if a else None for a in axes)


def convert_partition_spec_to_placements(
    partition_spec: PartitionSpec, mesh: Mesh
) -> tuple[Placement, ...]:
    """The placement for each axis of a mesh that say the same as a partition spec.

    Raises:
        ShardingError: the spec has unknown axes, or one twice; or several axes shard a dimension
            in another order than that of the mesh, which placements do not express.
    """
    sharding = Sharding(mesh, tuple(map(tuple, axes_of(mesh, partition_spec))))
    sharding.check(len(partition_spec))
    placements: list[Placement] = [Replicate() for _ in mesh.axis_names]
    for dim, names in enumerate(sharding.axes):
        numbers = [mesh.axis_names.index(name) for name in names]
        used = [n for n in numbers if mesh.mesh_shape[n] > 1]
        if used != sorted(used):
            raise ShardingError(
                f"{sharding} shards dimension {dim} by {', '.join(names)} in this order, and "
                f"placements only by the axes in the order of {mesh}: make the mesh with its axes "
                "in that order"
            )
        for number in numbers:
            placements[number] = Shard(dim)
    return tuple(placements)


def _why(placement: Placement) -> str:
    if placement.is_partial():
        return (
            ": each device would have a term of a sum, and a marked tensor has its values. "
            "Redistribute the DTensor to Replicate() or Shard(dim) first"
        )
    return ": mark the tensor with the partition spec that it means"
