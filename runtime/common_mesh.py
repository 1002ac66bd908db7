"""One mesh for tensors that are sharded over several meshes of the same devices."""

import math
from collections.abc import Iterable, Sequence

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import UNCONSTRAINED, Mesh, Sharding


def common_mesh(meshes: Iterable[Mesh]) -> Mesh:
    """The coarsest mesh of which each axis of these meshes is one axis or several.

    Raises:
        ShardingError: there is none: they have other devices, another order of them, or sizes that
            do not nest, as 2 x 3 and 3 x 2 do not.

    >>> common_mesh([Mesh(range(8), (8,), ("x",)), Mesh(range(8), (2, 4), ("data", "model"))])
    Mesh(part_0=2, part_1=4)
    """
    every = list(dict.fromkeys(meshes))
    if len(every) == 1:
        return every[0]
    steps = sorted({step for mesh in every for step in _steps(mesh)})
    pairs = list(zip(steps[1:], steps, strict=False))
    same = all(mesh.ids == every[0].ids for mesh in every)
    if not same or any(outer % inner for outer, inner in pairs):
        raise ShardingError(
            f"no mesh has the axes of {every[0]} and of {every[1]}: use meshes of the same "
            "devices in the same order, whose sizes divide one another"
        )
    sizes = [outer // inner for outer, inner in reversed(pairs)]
    return Mesh(every[0].ids, sizes, [f"part_{i}" for i in range(len(sizes))])


def on_mesh(sharding: Sharding, mesh: Mesh) -> Sharding:
    """The same sharding over a finer mesh, which `common_mesh` made of its own."""
    if sharding.mesh == mesh:
        return sharding
    parts = {UNCONSTRAINED: [UNCONSTRAINED], **_parts(sharding.mesh, mesh)}
    axes = (tuple(part for name in names for part in parts[name]) for names in sharding.axes)
    return Sharding(mesh, tuple(axes))


def _steps(mesh: Mesh) -> Sequence[int]:
    """How many devices lie between neighbours along each axis, and the number of all."""
    sizes = mesh.mesh_shape
    return [math.prod(sizes[i:]) for i in range(len(sizes) + 1)]


def _parts(mesh: Mesh, finer: Mesh) -> dict[str, list[str]]:
    """The axes of a finer mesh that each axis consists of, the major one first."""
    steps, fine = _steps(mesh), _steps(finer)
    return {
        name: [
            part
            for part, step, size in zip(finer.axis_names, fine[1:], finer.mesh_shape, strict=True)
            if inner <= step and step * size <= outer and size > 1
        ]
        for name, outer, inner in zip(mesh.axis_names, steps, steps[1:], strict=False)
    }
