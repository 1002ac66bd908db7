"""Partition specs: what the user writes, as names of axes."""

from collections.abc import Sequence
from typing import TypeAlias

from xla_dynamo.runtime.mesh import Mesh

# An axis of the mesh by name or by number.
Axis: TypeAlias = str | int
# For each dimension of a tensor: the axis that divides it, several of them, None, or UNCONSTRAINED.
PartitionSpec: TypeAlias = Sequence[Axis | Sequence[Axis] | None]


def axes_of(mesh: Mesh, spec: PartitionSpec) -> list[list[str]]:
    """The names of the axes that divide each dimension. Dynamo traces this, so it checks nothing.

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
