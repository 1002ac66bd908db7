"""One mesh in the place of several."""

import pytest

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.common_mesh import common_mesh, on_mesh
from xla_dynamo.runtime.mesh import Mesh, Sharding

SHAPES = [(8,), (2, 4), (4, 2), (2, 2, 2), (1, 8), (8, 1), (1, 2, 1, 4)]


def mesh_of(shape):
    return Mesh(range(8), shape)


@pytest.mark.parametrize("first", SHAPES, ids=str)
@pytest.mark.parametrize("second", SHAPES, ids=str)
def test_shardings_are_the_same_on_the_common_mesh(first, second):
    meshes = [mesh_of(first), mesh_of(second)]
    common = common_mesh(meshes)
    assert common.size() == 8
    for mesh in meshes:
        names = mesh.axis_names
        for axes in [(names, ()), ((), names[::-1]), (names[:1], names[1:]), ((), ())]:
            sharding = Sharding(mesh, axes)
            moved = on_mesh(sharding, common)
            moved.check(2)
            assert moved.tiling() == sharding.tiling()


def test_one_mesh_stays_itself():
    assert common_mesh([mesh_of((2, 4)), mesh_of((2, 4))]) == mesh_of((2, 4))


@pytest.mark.parametrize(
    "other",
    [Mesh(range(6), (2, 3)), Mesh([1, 0, 2, 3, 4, 5], (6,)), Mesh(range(1, 7), (3, 2))],
    ids=str,
)
def test_meshes_that_have_nothing_in_common(other):
    with pytest.raises(ShardingError, match="no mesh has the axes of"):
        common_mesh([Mesh(range(6), (3, 2)), other])
