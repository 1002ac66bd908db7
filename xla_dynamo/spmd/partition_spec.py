"""Partition specs: what the user writes, as names of axes."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh

# An axis of the mesh by name or by number.
Axis: TypeAlias = str | int
# For each dimension of a tensor: the axis that shards it, several of them, None, or UNCONSTRAINED.
PartitionSpec: TypeAlias = Sequence[Axis | Sequence[Axis] | None]


def check_spec(t: Any, mesh: Any, spec: Any) -> None:
    """Raise ShardingError unless these are a tensor, a mesh and the form of a partition spec."""
    if not isinstance(t, torch.Tensor):
        raise ShardingError(f"mark_sharding takes a tensor, and not {t!r}")
    if not isinstance(mesh, Mesh):
        raise ShardingError(f"the mesh is an xla_dynamo.spmd.Mesh, and not {mesh!r}")
    entries = spec if isinstance(spec, list | tuple) else [spec]
    axes = [a for e in entries for a in (e if isinstance(e, list | tuple) else [e])]
    if entries is not spec or not all(a is None or _is_axis(a) for a in axes):
        raise ShardingError(
            f"a partition spec is a tuple with an entry for each dimension: the name or the number "
            f"of an axis, a tuple of them, or None; {spec!r} is none"
        )


def _is_axis(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def axes_of(mesh: Mesh, spec: PartitionSpec) -> list[list[str]]:
    """The names of the axes that shard each dimension. Dynamo traces this, so it checks nothing.

    What names no axis of the mesh stays as it is: `Sharding.check` refuses it.
    """
    found: list[list[str]] = []
    for entry in spec:
        if entry is None:
            found.append([])
        elif isinstance(entry, str | int):
            found.append([_name(mesh, entry)])
        else:
            found.append([_name(mesh, axis) for axis in entry])
    return found


def _name(mesh: Mesh, axis: Axis) -> str:
    if isinstance(axis, int) and 0 <= axis < len(mesh.axis_names):
        return mesh.axis_names[axis]
    return str(axis)
