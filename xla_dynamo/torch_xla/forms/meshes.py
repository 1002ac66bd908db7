"""Meshes as PyTorch/XLA has them: with arrays of NumPy, texts, and XLA's own shardings."""

import ast
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from xla_dynamo import runtime, spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.lazy import memory
from xla_dynamo.runtime.clients import placement_over
from xla_dynamo.runtime.hlo_shardings import sharding_text, tile_assignment
from xla_dynamo.runtime.mesh import Sharding, Tiling
from xla_dynamo.spmd.partition_spec import PartitionSpec, axes_of


class ShardingType(IntEnum):
    """The kinds of XLA's `OpSharding`."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


def sharding_type_of(sharding: Sharding) -> ShardingType:
    """What kind a sharding is: each device has all, a part of its own, or one with some others."""
    shards = np.prod(sharding.counts(), dtype=int)
    if shards == 1:
        return ShardingType.REPLICATED
    return ShardingType.TILED if shards == sharding.mesh.size() else ShardingType.PARTIAL


class OpSharding:
    """How an array is sharded, as XLA's compiler is told.

    Attributes:
        tile_assignment: nested lists of the ids of devices, by the numbers of their shards; of one
            that is replicated in part, with one dimension more.
        group_assignment: of such a one, the number of the group of each shard, by its numbers.
        replication_groups: the ids of the devices that have the same, by the number of the group.
        sharding_type: what kind it is.
    """

    def __init__(
        self,
        tile_assignment: Any,
        group_assignment: Any,
        replication_groups: Any,
        sharding_type: int,
    ) -> None:
        """Take the lists as they are."""
        self.tile_assignment = tile_assignment
        self.group_assignment = group_assignment
        self.replication_groups = replication_groups
        self.sharding_type = ShardingType(sharding_type)

    @classmethod
    def of(cls, sharding: Sharding) -> "OpSharding":
        """What XLA is told of a sharding."""
        kind = sharding_type_of(sharding)
        if kind is ShardingType.REPLICATED:
            return cls([], [], [], kind)
        tiles = tile_assignment(sharding)
        groups = [list(devices) for devices in tiles.devices.values()]
        if kind is ShardingType.TILED:
            return cls(np.array(groups).reshape(tiles.counts).tolist(), [], [], kind)
        every = np.array(groups).reshape(*tiles.counts, -1).tolist()
        numbers = np.arange(len(groups)).reshape(tiles.counts).tolist()
        return cls(every, numbers, groups, kind)

    def on_mesh(self, rank: int) -> tuple[spmd.Mesh, tuple[int | None, ...]]:
        """A mesh, and the partition spec for it that shards arrays of a rank so.

        Raises:
            ShardingError: it is of a kind that shards nothing, or has another rank.
        """
        if self.sharding_type is ShardingType.REPLICATED:
            return spmd.get_1d_mesh(), (None,) * rank
        if self.sharding_type is ShardingType.TILED:
            ids = np.array(self.tile_assignment)
            mesh = spmd.Mesh(ids.flatten(), ids.shape)
        elif self.sharding_type is ShardingType.PARTIAL:
            shape = np.array(self.group_assignment).shape
            groups = np.array(self.replication_groups)
            mesh = spmd.Mesh(groups.flatten(), (*shape, groups.shape[1]))
        else:
            raise ShardingError(f"{self.sharding_type!r} is no sharding of a tensor by a mesh")
        spec = tuple(range(len(mesh.mesh_shape) - (self.sharding_type is ShardingType.PARTIAL)))
        if len(spec) != rank:
            raise ShardingError(f"it shards {len(spec)} dimensions, and the tensor has {rank}")
        return mesh, spec

    def over(self, mesh: spmd.Mesh, rank: int) -> Sharding:
        """The sharding of arrays of a rank over a mesh, if its axes make it.

        Raises:
            ShardingError: they do not, or it is of a kind that shards nothing.
        """
        own = _sharding(*self.on_mesh(rank))
        shards = dict(zip(own.mesh.ids, own.tiling().shards, strict=True))
        found = None
        if set(shards) == set(mesh.ids):
            found = Tiling(own.counts(), tuple(shards[i] for i in mesh.ids)).on(mesh, rank)
        if found is None:
            raise ShardingError(f"{self!r} shards nothing by whole axes of {mesh!r}")
        return found

    def __repr__(self) -> str:
        if self.sharding_type is ShardingType.REPLICATED:
            return "{replicated}"
        if self.sharding_type in (ShardingType.TILED, ShardingType.PARTIAL):
            ids = np.array(self.tile_assignment)
            rank = ids.ndim - (self.sharding_type is ShardingType.PARTIAL)
            mesh, spec = self.on_mesh(rank)
            return sharding_text(_sharding(mesh, spec))
        return f"{{{self.sharding_type.name.lower()}}}"


def _sharding(mesh: spmd.Mesh, spec: PartitionSpec) -> Sharding:
    sharding = Sharding(mesh, tuple(map(tuple, axes_of(mesh, spec))))
    sharding.check(len(spec))
    return sharding


class _Arrays:
    """What meshes have there beside what ours have."""

    __slots__ = ()

    @property
    def device_ids(self: Any) -> np.ndarray:
        """The ids of the devices: a vector."""
        return np.array(self.ids)

    def get_op_sharding(self: Any, partition_spec: PartitionSpec) -> OpSharding:
        """What XLA is told of a tensor that is sharded by a partition spec.

        Raises:
            ShardingError: the spec names an axis twice, or one that is not there.
        """
        return OpSharding.of(_sharding(self, partition_spec))

    def get_jax_mesh(self: Any) -> Any:
        """JAX's mesh of the same devices: those that tensors of the device 'xla' lie on.

        Raises:
            ShardingError: there is no device with one of the ids.
        """
        import jax  # not before it is needed

        devices = np.array(placement_over(self, memory.placement()).devices, dtype=object)
        return jax.sharding.Mesh(devices.reshape(self.mesh_shape), self.axis_names)

    def __format__(self: Any, how: str) -> str:
        return format(repr(self), how)  # in messages

    def __str__(self: Any) -> str:
        parts = {"device_ids": list(self.ids), "mesh_shape": self.mesh_shape}
        return str({**parts, "axis_names": self.axis_names})


class Mesh(_Arrays, spmd.Mesh):
    """`xla_dynamo.spmd.Mesh`, whose ids are an array of NumPy."""

    __slots__ = ()

    @classmethod
    def from_str(cls, mesh_str: str) -> "Mesh | None":
        """The mesh of which a text was made by `str`; None if it is no such text."""
        try:
            parts = ast.literal_eval(mesh_str.replace("Mesh", ""))
            return cls(parts["device_ids"], parts["mesh_shape"], parts["axis_names"])
        except (ValueError, SyntaxError, KeyError, TypeError):
            return None


class HybridMesh(_Arrays, spmd.HybridMesh):
    """`xla_dynamo.spmd.HybridMesh`, whose ids are an array of NumPy."""

    __slots__ = ()


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """A mesh of one axis over all devices; the axis is called "axis_0" unless it has a name."""
    count = runtime.global_runtime_device_count()
    names: Sequence[str] | None = None if axis_name is None else (axis_name,)
    return Mesh(range(count), (count,), names)
