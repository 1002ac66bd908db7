"""Meshes, shardings and the shards that devices have."""

import numpy as np
import pytest

from tests.spmd.sharding import ONE_AXIS, TALL, WIDE
from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.clients import ClientConfiguration
from xla_dynamo.runtime.mesh import Mesh, Sharding, Tiling


def test_what_a_mesh_says():
    mesh = Mesh(np.arange(8), (2, 4), ("data", "model"))
    assert mesh == WIDE
    assert hash(mesh) == hash(WIDE)
    assert mesh != TALL
    assert mesh.size() == 8
    assert dict(mesh.shape()) == {"data": 2, "model": 4}
    assert mesh.get_logical_mesh().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (mesh.get_axis_name_idx("model"), mesh.get_axis_name_idx("x")) == (1, None)
    assert Mesh([1, 0], (2,)).axis_names == ("axis_0",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((range(8), (2, 3)), "6 devices, and 8 ids"),
        (([0, 0], (2,)), "each device once"),
        ((range(4), (2, 2), ("a",)), "not as many"),
        ((range(4), (2, 2), ("a", "a")), "different identifiers"),
        ((range(4), (2, 2), ("a", "b c")), "different identifiers"),
        (([], (0,)), "0 devices"),
    ],
)
def test_what_is_no_mesh(given, message):
    with pytest.raises(ShardingError, match=message):
        Mesh(*given)


@pytest.mark.parametrize(
    "axes",
    [
        (("x",), ()),
        ((), ("x",)),
    ],
)
def test_shards_cover_an_array(axes):
    array = np.arange(80).reshape(10, 8)  # uneven for eight
    again = np.zeros_like(array)
    for where in Sharding(ONE_AXIS, axes).tiling().slices(array.shape):
        again[where] += array[where]
    assert (again == array).all()


def test_a_sharding_is_found_again_from_its_shards():
    for axes in [(("data",), ()), ((), ("model",)), (("model", "data"), ()), ((), ())]:
        sharding = Sharding(WIDE, axes)
        assert sharding.tiling().on(WIDE, 2) == sharding
    scattered = Tiling((8,), tuple((i,) for i in (3, 1, 2, 0, 4, 5, 6, 7)))
    assert scattered.on(WIDE, 1) is None


def test_flags_say_how_many_devices(monkeypatch):
    monkeypatch.delenv("CPU_NUM_DEVICES")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=5 --xla_dump_to=x")
    assert ClientConfiguration.from_environment().cpu_devices == 5
    monkeypatch.setenv("CPU_NUM_DEVICES", "3")
    assert ClientConfiguration.from_environment().cpu_devices == 3
