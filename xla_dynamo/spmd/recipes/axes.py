"""The mesh that a recipe shards over, and its axes by the names that the user gives."""

from collections.abc import Sequence

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.meshes import get_global_mesh


def mesh_or_global(mesh: Mesh | None) -> Mesh:
    """The mesh that is given, or else the global one.

    Raises:
        ShardingError: there is neither.
    """
    mesh = mesh or get_global_mesh()
    if mesh is None:
        raise ShardingError(
            "there is no mesh to shard over: give the recipe one, or call spmd.set_global_mesh"
        )
    return mesh


def checked_axes(mesh: Mesh, axis: str | Sequence[str]) -> tuple[str, ...]:
    """The axes of a mesh that a recipe names.

    Raises:
        ShardingError: the mesh has no axis of such a name.
    """
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    for name in axes:
        if name not in mesh.axis_names:
            raise ShardingError(
                f"{mesh} has no axis {name!r}: name one of {mesh.axis_names}, or give the mesh an "
                "axis of this name"
            )
    return axes
