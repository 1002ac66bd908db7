"""The mesh of the manual region that is being traced, which collectives need not name."""

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh

# Of the regions around, the innermost last. A list, because Dynamo traces what changes it.
_meshes: list[Mesh] = []


def entered(mesh: Mesh) -> None:
    """Note that what comes now is in a manual region of a mesh."""
    _meshes.append(mesh)


def left() -> None:
    """Note that the innermost region ends."""
    _meshes.pop()


def mesh_or_current(mesh: Mesh | None) -> Mesh:
    """A mesh, or else that of the region around.

    Raises:
        ShardingError: there is neither.
    """
    if mesh is not None:
        return mesh
    if not _meshes:
        raise ShardingError(
            "which mesh? Outside of spmd.shard_map, manual regions and collectives take it: mesh=…"
        )
    return _meshes[-1]
