"""Partition specs: what the user writes, checked against a mesh and a tensor."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh

# An axis of the mesh by name or by number.
Axis: TypeAlias = str | int
# For each dimension of a tensor: the axis that divides it, several of them, or None.
PartitionSpec: TypeAlias = Sequence[Axis | Sequence[Axis] | None]


def axes_of(mesh: Mesh, spec: PartitionSpec, rank: int) -> list[list[str]]:
    """The names of the axes that divide each dimension. Dynamo traces this.

    Raises:
        ShardingError: the spec is not one for a tensor of this rank and this mesh.
    """
    if len(spec) != rank:
        raise ShardingError(
            f"the partition spec {spec} has {len(spec)} entries, and the tensor {rank} dimensions: "
            "give an entry for each, None for a dimension that is not divided"
        )
    found: list[list[str]] = []
    used: list[str] = []
    for entry in spec:
        names: list[str] = []
        if isinstance(entry, (tuple, list)):
            for axis in entry:
                names.append(_name(mesh, axis, spec))
        elif entry is not None:
            names.append(_name(mesh, entry, spec))
        for name in names:
            if name in used:
                raise ShardingError(f"the partition spec {spec} has the axis {name!r} twice")
            used.append(name)
        found.append(names)
    return found


def _name(mesh: Mesh, axis: Any, spec: Any) -> str:
    names = mesh.axis_names
    if isinstance(axis, str) and axis in names:
        return axis
    if isinstance(axis, int) and not isinstance(axis, bool) and 0 <= axis < len(names):
        return names[axis]
    raise ShardingError(
        f"the partition spec {spec} names the axis {axis!r}, and the mesh has {names}"
    )
