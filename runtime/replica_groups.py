"""Groups of devices: along axes of a mesh, or as the user lists them, to indices in the mesh.

Dynamo traces these functions, so they are plain loops.
"""

from collections.abc import Sequence


def sizes_of(mesh_shape: Sequence[int], axis_names: Sequence[str]) -> dict[str, int]:
    """The sizes of a mesh's axes by name."""
    return {axis_names[i]: mesh_shape[i] for i in range(len(axis_names))}


def groups_along(
    mesh_shape: Sequence[int], axis_names: Sequence[str], axes: Sequence[str]
) -> tuple[list[int], int]:
    """The groups of devices that differ along some axes alone, one after another, and their size.

    A group is in the sequence of the axes, the first of which is the major one.
    """
    strides: dict[str, int] = {}
    stride = 1
    for i in range(len(axis_names) - 1, -1, -1):
        strides[axis_names[i]] = stride
        stride *= mesh_shape[i]
    sizes = sizes_of(mesh_shape, axis_names)
    others = [name for name in axis_names if name not in axes]
    members = [0]
    for name in axes:
        members = [m + i * strides[name] for m in members for i in range(sizes[name])]
    firsts = [0]
    for name in others:
        firsts = [f + i * strides[name] for f in firsts for i in range(sizes[name])]
    return [first + member for first in firsts for member in members], len(members)
