"""Meshes over all devices, the global mesh, and specs with their mesh. Each test starts cold."""

import types

import numpy as np
import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import WIDE, collectives, sharded
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime import topology


def test_one_axis_over_all_devices():
    assert spmd.get_1d_mesh() == spmd.Mesh(range(8), (8,))
    assert spmd.get_1d_mesh("data").shape() == {"data": 8}
    x = spmd.mark_sharding(torch.randn(16, 4), spmd.get_1d_mesh("data"), ("data", None))
    result, executable = sharded(lambda x: x.sin().sum(), x)
    torch.testing.assert_close(result, x.sin().sum())
    assert collectives(executable)["all-reduce"] == 1


def test_the_global_mesh():
    assert spmd.get_global_mesh() is None
    spmd.set_global_mesh(WIDE)
    assert spmd.get_global_mesh() is WIDE
    with pytest.raises(ShardingError, match=r"an xla_dynamo\.spmd\.Mesh, and not \(2, 4\)"):
        spmd.set_global_mesh((2, 4))
    assert spmd.get_global_mesh() is WIDE


def test_the_global_mesh_in_a_compiled_function():
    spmd.set_global_mesh(WIDE)

    def f(x):
        return spmd.mark_sharding(x.sin(), spmd.get_global_mesh(), ("data", "model")) * 2

    x = torch.randn(4, 8)
    result, executable = sharded(f, x)
    torch.testing.assert_close(result, x.sin() * 2)
    assert "f32[2,2]" in executable.hlo


def test_slow_networks_are_the_major_parts_of_axes():
    one = spmd.HybridMesh(ici_mesh_shape=(2, 4), axis_names=("data", "model"))
    assert one == WIDE
    assert (one.ici_mesh_shape, one.dcn_mesh_shape) == ((2, 4), (1, 1))
    two = spmd.HybridMesh(ici_mesh_shape=(1, 4), dcn_mesh_shape=(2, 1))
    assert two.get_logical_mesh().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # Slices {0..3} and {4..7}, of 2 x 2 each: along "model", ranks 0 and 1 are in the first one.
    mixed = spmd.HybridMesh(ici_mesh_shape=(2, 2), dcn_mesh_shape=(1, 2))
    assert mixed.get_logical_mesh().tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_programs_are_sharded_over_a_hybrid_mesh():
    mesh = spmd.HybridMesh(
        ici_mesh_shape=(2, 2), dcn_mesh_shape=(1, 2), axis_names=("data", "model")
    )
    x, w = torch.randn(6, 16), torch.randn(16, 8)
    spmd.mark_sharding(w, mesh, ("model", "data"))

    def f(x, w):
        return spmd.mark_sharding(x @ w, mesh, (None, "data"))

    result, executable = sharded(f, x, w)
    torch.testing.assert_close(result, x @ w, rtol=1e-4, atol=1e-4)
    assert collectives(executable)["all-reduce"] == 1


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"ici_mesh_shape": (2, 2)}, r"1 slices of 4 devices, and there are slices of \[8\]"),
        ({"ici_mesh_shape": (2, 4), "dcn_mesh_shape": (2, 1)}, "2 slices of 8 devices"),
        ({"ici_mesh_shape": (2, 4), "dcn_mesh_shape": (1,)}, "a size for each axis"),
        ({"ici_mesh_shape": (0, 4)}, "1 slices of 0 devices"),
        ({"ici_mesh_shape": (2, 4), "axis_names": ("data", "data")}, "different identifiers"),
    ],
)
def test_what_is_no_hybrid_mesh(shapes, message):
    with pytest.raises(ShardingError, match=message):
        spmd.HybridMesh(**shapes)


def device(number, slice_index, platform="gpu"):
    """What a HybridMesh reads of a PJRT device."""
    fields = {"platform": platform, "device_kind": "some", "slice_index": slice_index}
    return types.SimpleNamespace(id=number, process_index=number // 2, **fields)


def devices(monkeypatch, every):
    client = types.SimpleNamespace(devices=lambda: every)
    for one in every:
        one.client = client
    monkeypatch.setattr(topology, "default_devices", lambda: every)


def test_the_slices_that_a_platform_tells(monkeypatch):
    devices(monkeypatch, [device(number, slice_index=number % 2) for number in range(8)])
    mesh = spmd.HybridMesh(ici_mesh_shape=(4,), dcn_mesh_shape=(2,))
    assert mesh.device_ids == (0, 2, 4, 6, 1, 3, 5, 7)
    with pytest.raises(ShardingError, match=r"there are slices of \[4, 4\] devices"):
        spmd.HybridMesh(ici_mesh_shape=(8,))


def test_a_process_is_a_slice_where_the_platform_does_not_tell(monkeypatch):
    devices(monkeypatch, [device(number, slice_index=None) for number in range(8)])
    mesh = spmd.HybridMesh(ici_mesh_shape=(1, 2), dcn_mesh_shape=(4, 1))
    assert mesh.get_logical_mesh().tolist() == np.arange(8).reshape(4, 2).tolist()


def test_slices_of_a_gpu_are_not_invented(monkeypatch):
    alone = [device(number, slice_index=0) for number in range(4)]
    devices(monkeypatch, alone)
    with pytest.raises(ShardingError, match=r"there are slices of \[4\] devices"):
        spmd.HybridMesh(ici_mesh_shape=(2,), dcn_mesh_shape=(2,))


def test_a_spec_with_its_mesh():
    spec = spmd.ShardingSpec(WIDE, ("data", None))
    assert spec.minibatch is False
    assert spec.can_apply(torch.zeros(4, 3))
    assert not spec.can_apply(torch.zeros(4))
    assert not spec.can_apply(torch.zeros(5, 4))  # is not divisible by two
    t = torch.zeros(4, 3)
    assert spec.apply(t) is t
    assert spmd.sharding_of(t) == spmd.sharding_of(spmd.mark_sharding(t.clone(), WIDE, (0, None)))
    with pytest.raises(ShardingError, match="5 is not divisible by 2"):
        spec.apply(torch.zeros(5, 4))
    with pytest.raises(ShardingError, match="has 2 entries"):
        spec.apply(torch.zeros(4))


@pytest.mark.parametrize(
    ("partition_spec", "message"),
    [(("rows", None), "names the axis 'rows'"), (("data", 0), "has the axis 'data' twice")],
)
def test_what_is_no_spec(partition_spec, message):
    with pytest.raises(ShardingError, match=message):
        spmd.ShardingSpec(WIDE, partition_spec)


def test_a_spec_in_a_compiled_function():
    spec = spmd.ShardingSpec(WIDE, ("data", "model"))
    x = torch.randn(4, 8)
    result, executable = sharded(lambda x: spec.apply(x.sin()) * 2, x)
    torch.testing.assert_close(result, x.sin() * 2)
    assert "f32[2,2]" in executable.hlo


def test_devices_that_are_not_there():
    far = spmd.Mesh(range(8, 16), (8,), ("x",))
    x = spmd.mark_sharding(torch.zeros(8), far, ("x",))
    with pytest.raises(Exception, match=r"xla_dynamo\.runtime\.set_device_count\(16\)"):
        xla_dynamo.explain(torch.sin)(x)
