"""Meshes of devices, and how the elements of a tensor are sharded over one."""

import ast
import dataclasses
import functools
import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from xla_dynamo.errors import ShardingError

# The names of the mesh axes that shard each dimension of a tensor, the major one first; () for a
# dimension that is whole on each device.
Axes: TypeAlias = tuple[tuple[str, ...], ...]

# In place of an axis, for a mark in a compiled region: the partitioner shards the dimension as
# suits the program. JAX has it as `PartitionSpec.UNCONSTRAINED`.
UNCONSTRAINED = "?"


class Mesh:
    """A grid of devices with names for its axes, as PyTorch/XLA's `Mesh`.

    Attributes:
        ids: the ids of the PJRT devices, in row-major order of the grid.
        mesh_shape: the sizes of the axes.
        axis_names: their names.

    >>> mesh = Mesh(range(8), (2, 4), ("data", "model"))
    """

    __slots__ = ("axis_names", "ids", "mesh_shape")

    def __init__(
        self,
        device_ids: Any,
        mesh_shape: Sequence[int],
        axis_names: Sequence[str] | None = None,
    ) -> None:
        """Take the ids (a sequence or an array), the sizes, and names: "axis_0" … unless given.

        Raises:
            ShardingError: ids or names come twice, or the numbers of things do not agree.
        """
        self.ids = tuple(int(i) for i in np.asarray(list(device_ids)).flatten())
        self.mesh_shape = tuple(int(n) for n in mesh_shape)
        names = [f"axis_{i}" for i in range(len(self.mesh_shape))]
        self.axis_names = tuple(names if axis_names is None else axis_names)
        count = math.prod(self.mesh_shape)
        if len(self.ids) != count or not count:
            raise ShardingError(
                f"a mesh of shape {self.mesh_shape} has {count} devices, and "
                f"{len(self.ids)} ids were given"
            )
        if len(set(self.ids)) != count:
            raise ShardingError(f"a mesh has each device once, unlike {self.ids}")
        if len(self.axis_names) != len(self.mesh_shape):
            raise ShardingError(
                f"the axes {self.axis_names} are not as many as the sizes {self.mesh_shape}"
            )
        if len(set(self.axis_names)) != len(self.axis_names) or not all(
            isinstance(name, str) and name.isidentifier() for name in self.axis_names
        ):
            raise ShardingError(
                f"the names of a mesh's axes are different identifiers, unlike {self.axis_names}"
            )

    def size(self) -> int:
        """The number of devices."""
        return len(self.ids)

    @property
    def device_ids(self) -> Any:
        """The ids of the devices: a tuple."""
        return self.ids

    def shape(self) -> "OrderedDict[str, int]":
        """The sizes of the axes by their names."""
        return OrderedDict(zip(self.axis_names, self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """The ids in an array of the mesh's shape."""
        return np.array(self.ids).reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """The number of an axis; None where there is none of this name."""
        return self.axis_names.index(name) if name in self.axis_names else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={n}" for name, n in self.shape().items())
        in_order = self.ids == tuple(range(self.size()))
        return f"Mesh({axes})" if in_order else f"Mesh({axes}, device_ids={self.ids})"

    @classmethod
    def from_str(cls, mesh_str: str) -> "Mesh | None":
        """The mesh of a text that `str` made of it; None for any other text."""
        try:
            call = ast.parse(mesh_str, mode="eval").body
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Mesh":
                return None
            sizes = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
            ids = sizes.pop("device_ids", None) or range(math.prod(sizes.values()))
            return Mesh(ids, list(sizes.values()), list(sizes))
        except (SyntaxError, TypeError, ValueError, ShardingError):
            return None

    def _fields(self) -> tuple[Any, ...]:
        return self.ids, self.mesh_shape, self.axis_names


@dataclasses.dataclass(frozen=True, slots=True)
class Sharding:
    """How a tensor is sharded over a mesh.

    Attributes:
        mesh: the mesh.
        axes: the axes that shard each dimension.
    """

    mesh: Mesh
    axes: Axes

    def check(self, rank: int) -> None:
        """Raise ShardingError unless this shards tensors of a rank."""
        if len(self.axes) != rank:
            raise ShardingError(
                f"{self} has {len(self.axes)} entries, and the tensor {rank} dimensions: give an "
                "entry for each, None for a dimension that is not sharded"
            )
        used = [name for names in self.axes for name in names]
        for name in used:
            if name == UNCONSTRAINED:
                raise ShardingError(
                    f"{self} leaves a dimension unconstrained, and only marks inside a compiled "
                    "region can: name the axis that shards it, or None"
                )
            if name not in self.mesh.axis_names:
                raise ShardingError(
                    f"{self} names the axis {name!r}, and the axes of {self.mesh} are "
                    f"{self.mesh.axis_names}"
                )
            if used.count(name) > 1:
                raise ShardingError(f"{self} has the axis {name!r} twice")

    def __str__(self) -> str:
        entries = [", ".join(map(repr, names)) for names in self.axes]
        entries = [
            f"({e})" if len(names) > 1 else e or "None"
            for e, names in zip(entries, self.axes, strict=True)
        ]
        return f"the partition spec ({', '.join(entries)}{',' * (len(entries) == 1)})"

    def counts(self) -> tuple[int, ...]:
        """Into how many shards each dimension is split."""
        sizes = self.mesh.shape()
        return tuple(math.prod(sizes[name] for name in names) for names in self.axes)

    def shards_evenly(self, shape: Sequence[int]) -> bool:
        """Whether the shards of a tensor of a shape are of one size."""
        return not any(n % count for n, count in zip(shape, self.counts(), strict=True))

    def permuted(self, permutation: Sequence[int]) -> "Sharding":
        """The sharding of the tensor's permutation."""
        return Sharding(self.mesh, tuple(self.axes[dim] for dim in permutation))

    def tiling(self) -> "Tiling":
        """The shards of the devices."""
        return _tiling_of(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Tiling:
    """Which shard of an array each device has.

    Attributes:
        counts: into how many shards each dimension is split; all but the last are of one size.
        shards: for each device, in the order of the mesh, the numbers of its shard.
    """

    counts: tuple[int, ...]
    shards: tuple[tuple[int, ...], ...]

    @classmethod
    def whole(cls, devices: int) -> "Tiling":
        """Each of so many devices has all of it, whatever its dimensions."""
        return cls((), ((),) * devices)

    @property
    def is_whole(self) -> bool:
        """Whether each device has all of it."""
        return math.prod(self.counts) == 1

    def slices(self, shape: Sequence[int]) -> list[tuple[slice, ...]]:
        """Where each device's shard lies in an array."""
        if self.is_whole:
            return [tuple(slice(0, n) for n in shape)] * len(self.shards)
        sizes = [-(-n // count) for n, count in zip(shape, self.counts, strict=True)]
        return [
            tuple(
                slice(min(i * size, n), min((i + 1) * size, n))
                for i, size, n in zip(shard, sizes, shape, strict=True)
            )
            for shard in self.shards
        ]

    def on(self, mesh: Mesh, rank: int) -> Sharding | None:
        """The sharding that has this tiling; None where whole axes of the mesh do not make it."""
        return Sharding(mesh, ((),) * rank) if self.is_whole else _sharding_of(self, mesh)


def _ways(mesh: Mesh, count: int) -> list[tuple[str, ...]]:
    """The axes, in each order, that together shard a dimension so often."""
    sizes = {name: n for name, n in mesh.shape().items() if n > 1}
    return [
        names
        for length in range(len(sizes) + 1)
        for names in itertools.permutations(sizes, length)
        if math.prod(sizes[name] for name in names) == count
    ]


@functools.lru_cache(maxsize=1024)
def _sharding_of(tiling: Tiling, mesh: Mesh) -> Sharding | None:
    for axes in itertools.product(*(_ways(mesh, count) for count in tiling.counts)):
        used = [name for names in axes for name in names]
        if len(set(used)) == len(used) and Sharding(mesh, axes).tiling() == tiling:
            return Sharding(mesh, axes)
    return None


@functools.lru_cache(maxsize=1024)
def _tiling_of(sharding: Sharding) -> Tiling:
    mesh, counts = sharding.mesh, sharding.counts()
    shards = []
    for coordinates in np.ndindex(*mesh.mesh_shape):
        at = dict(zip(mesh.axis_names, coordinates, strict=True))
        shard = []
        for names in sharding.axes:
            number = 0
            for name in names:
                number = number * mesh.shape()[name] + at[name]
            shard.append(number)
        shards.append(tuple(shard))
    return Tiling(counts, tuple(shards))
