"""Names of `torch_xla.distributed.spmd`: what tensors with a mark have, on eight devices."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard

import xla_dynamo
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.torch_xla.forms import sharding_functions as c_extension
from xla_dynamo.torch_xla.forms import spmd as forms
from xla_dynamo.torch_xla.forms.meshes import (
    HybridMesh,
    Mesh,
    OpSharding,
    ShardingType,
    get_1d_mesh,
)
from xla_dynamo.torch_xla.forms.sharded_tensors import XLAShard, XLAShardedTensor, no_dispatch

FLAT = Mesh(range(8), (8,))
WIDE = Mesh(range(8), (2, 4), ("data", "model"))
GRID = Mesh(np.array([3, 1, 0, 2, 7, 5, 6, 4]), (2, 4), ("data", "model"))


def marked(tensor, mesh, spec):
    """A tensor on the device with the elements of one of the CPU."""
    return forms.mark_sharding(tensor.to(xla_dynamo.device()), mesh, spec)


@pytest.mark.parametrize(
    ("mesh", "spec", "kind"),
    [
        (FLAT, (0, None), ShardingType.TILED),
        (FLAT, (None, None), ShardingType.REPLICATED),
        (GRID, ("model", "data"), ShardingType.TILED),
        (GRID, (None, "model"), ShardingType.PARTIAL),
        (GRID, (("model", "data"), None), ShardingType.TILED),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(8, 8), (9, 6)], ids=["even", "uneven"])
def test_what_tensors_with_a_mark_have(mesh, spec, kind, size):
    elements = torch.arange(float(np.prod(size))).reshape(size)
    tensor = marked(elements, mesh, spec)
    assert isinstance(tensor, XLAShardedTensor)
    assert tensor.global_tensor is tensor
    assert tensor.partition_spec == spec
    assert tensor.mesh_shape == mesh.mesh_shape
    assert tensor.sharding_type is kind
    assert tensor.sharding_spec == spmd.get_sharding_text(tensor)
    shards = tensor.local_shards
    assert [s.shard_device for s in shards] == [f"CPU:{i}" for i in range(8)]
    counts = spmd.sharding_of(tensor).counts()
    seen = torch.zeros(size)
    for shard in shards:
        assert isinstance(shard, XLAShard)
        assert shard.data.device.type == "cpu"
        assert shard.data.shape == tuple(-(-n // c) for n, c in zip(size, counts, strict=True))
        at = shard.indices if shard.indices is ... else tuple(shard.indices)
        torch.testing.assert_close(shard.unpadded_data, elements[at])
        assert shard.data.sum() == shard.unpadded_data.sum()
        seen[at] += 1
    assert (seen == 8 / np.prod(counts)).all()
    numbers = sorted(s.replica_id for s in shards)
    together = 8 // np.prod(counts)
    if kind is ShardingType.REPLICATED:
        assert numbers == list(range(8))
        with pytest.raises(RuntimeError, match="use copy_"):
            tensor.load_local_shards_(shards)
        return
    assert numbers == sorted(list(range(together)) * int(np.prod(counts)))
    for shard in shards:
        shard.unpadded_data = -shard.unpadded_data
    tensor.load_local_shards_(shards[::-1])
    torch.testing.assert_close(tensor.cpu(), -elements)
    assert tensor.sharding_type is kind
    with pytest.raises(RuntimeError, match="parts of the devices"):
        tensor.load_local_shards_(shards[:-1])
    shards[0].data = torch.zeros(1, 1)
    with pytest.raises(RuntimeError, match=r"part of CPU:0 has the shape .* unlike \(1, 1\)"):
        tensor.load_local_shards_(shards)


def test_others_have_nothing_of_it():
    for tensor in (
        torch.zeros(2),
        torch.zeros(2, device=xla_dynamo.device()),
        nn.Linear(2, 2).weight,
    ):
        assert not isinstance(tensor, XLAShardedTensor)
        for name in ("local_shards", "placements", "redistribute", "partition_spec", "_none"):
            assert not hasattr(tensor, name)
    assert not hasattr(torch.zeros(2), "global_tensor")
    assert torch.overrides.get_overridable_functions()  # which looks at every name of a tensor


def test_a_pending_result_is_computed_for_it():
    tensor = marked(torch.ones(8, 8), FLAT, (0, None))
    assert (tensor + 1).sharding_type is ShardingType.TILED


def test_a_parameter_stays_one():
    layer = nn.Linear(8, 8).to(xla_dynamo.device())
    assert forms.mark_sharding(layer.weight, FLAT, (0, None)) is layer.weight
    layer.weight = XLAShardedTensor(layer.weight)
    layer(torch.ones(8, 8, device=xla_dynamo.device())).sum().backward()
    torch.testing.assert_close(layer.weight.grad.cpu(), torch.full((8, 8), 8.0))
    assert len(layer.weight.local_shards) == 8


def test_wrapping():
    tensor = torch.ones(8, 8, device=xla_dynamo.device())
    assert forms.wrap_as_sharded_tensor(tensor) is tensor
    assert not isinstance(forms.wrap_if_sharded(tensor), XLAShardedTensor)
    assert forms.wrap_as_sharded_tensor(tensor, (2, 4), (None, 1)) is tensor
    assert tensor.placements == (Replicate(), Shard(1))
    assert forms.unwrap_sharded_tensor(tensor) is tensor
    XLAShardedTensor(tensor, (2, 4), (0, None), requires_grad=True)
    assert tensor.requires_grad
    assert tensor.partition_spec == (0, None)
    tensor.invalidate_spec_cache()
    with no_dispatch():
        assert (tensor + 1).sum().item() == 128


def test_redistribution():
    elements = torch.randn(8, 8)
    tensor = marked(elements, WIDE, ("data", None))
    other = tensor.redistribute(WIDE, [Replicate(), Shard(1)], async_op=True)
    assert other is not tensor
    assert (tensor.partition_spec, other.partition_spec) == (("data", None), (None, 1))
    same = tensor.redistribute(spmd.to_device_mesh(FLAT), [Shard(-1)])
    assert same is tensor
    assert tensor.placements == (Shard(1),)
    assert tensor.local_shards[0].data.shape == (8, 1)
    torch.testing.assert_close((tensor + other).cpu(), 2 * elements)
    with pytest.raises(ValueError, match="2 placements for 1 axes"):
        tensor.redistribute(FLAT, [Shard(0), Shard(1)])
    with pytest.raises(IndexError, match="dimension that a tensor of 2 does not have"):
        tensor.redistribute(FLAT, [Shard(2)])
    with pytest.raises(NotImplementedError, match="no terms of sums"):
        tensor.redistribute(FLAT, [Partial()])


def test_annotations_leave_the_mark():
    elements = torch.randn(8, 8)
    tensor = marked(elements, WIDE, ("data", None))
    assert forms.annotate_custom_sharding(tensor, FLAT, (None, 0)) is tensor
    result = tensor * 2
    xla_dynamo.sync()
    torch.testing.assert_close(result.cpu(), 2 * elements)
    assert tensor.partition_spec == ("data", None)
    assert tensor.local_shards[0].data.shape == (4, 8)
    with pytest.raises(ShardingError, match="1 entries, and the tensor 2 dimensions"):
        forms.annotate_custom_sharding(tensor, FLAT, (0,))


def test_marks_of_gradients():
    x = torch.randn(8, 8).to(xla_dynamo.device()).requires_grad_()
    forms.MarkShardingFunction.apply(x, FLAT, (0, None)).square().sum().backward()
    xla_dynamo.sync()
    assert x.grad.sharding_type is ShardingType.TILED
    torch.testing.assert_close(x.grad.cpu(), 2 * x.detach().cpu())


def test_meshes():
    assert isinstance(GRID.device_ids, np.ndarray)
    assert GRID.device_ids.tolist() == [3, 1, 0, 2, 7, 5, 6, 4]
    assert GRID.device_ids.reshape(2, 4).tolist() == GRID.get_logical_mesh().tolist()
    assert Mesh.from_str(str(GRID)) == GRID == spmd.Mesh(GRID.ids, (2, 4), ("data", "model"))
    assert Mesh.from_str("Mesh()") is None
    assert f"{GRID}" == repr(GRID)
    assert get_1d_mesh("x") == Mesh(range(8), (8,), ("x",))
    hybrid = HybridMesh(ici_mesh_shape=(1, 4), dcn_mesh_shape=(2, 1))
    assert hybrid.device_ids.shape == (8,)
    names = GRID.get_jax_mesh()
    assert dict(names.shape) == {"data": 2, "model": 4}
    assert [d.id for d in names.devices.flatten()] == list(GRID.ids)
    device_mesh = spmd.to_device_mesh(GRID)
    assert forms.convert_to_xla_mesh(device_mesh) == GRID
    placements = [Shard(1), Replicate()]
    assert forms.convert_to_xla_partition_spec(torch.ones(2, 3), placements) == (None, 0)
    assert (
        forms.xla_distribute_tensor(torch.ones(8, 8), device_mesh, placements).device.type == "xla"
    )


@pytest.mark.parametrize("spec", [("model", "data"), (None, "model"), (None, None)], ids=str)
def test_shardings_as_the_compiler_is_told(spec):
    sharding = GRID.get_op_sharding(spec)  # its own mesh has the devices in another order
    first, second = marked(torch.ones(8, 8), GRID, spec), torch.ones(8, 8).to(xla_dynamo.device())
    assert c_extension._get_xla_sharding_spec(second) == ""
    assert c_extension._get_xla_sharding_type(second) is None
    c_extension._xla_mark_sharding(second, sharding)
    texts = c_extension._get_xla_sharding_specs([first, second])
    assert texts == [repr(sharding)] * 2
    assert c_extension._get_xla_sharding_type(second) == sharding.sharding_type
    assert repr(c_extension._get_xla_op_sharding(second)) == texts[0]
    (shards,) = c_extension._get_local_shards([first])
    (places,) = c_extension._get_local_shard_replica_and_indices([first])
    assert len(shards) == len(places) == 8
    if sharding.sharding_type is not ShardingType.REPLICATED:
        data = [3 * elements for elements, _ in shards]
        c_extension._load_local_shards(second, data, [device for _, device in shards])
        assert (second.cpu() == 3).all()
    c_extension._xla_annotate_custom_sharding(first, sharding)
    assert (first.cpu() == 1).all()
    c_extension._xla_clear_sharding(second)
    assert c_extension._get_xla_sharding_spec(second) == ""


def test_shardings_that_shard_nothing():
    with pytest.raises(ShardingError, match="MANUAL"):
        OpSharding([], [], [], ShardingType.MANUAL).on_mesh(2)
    with pytest.raises(ShardingError, match="it shards 2 dimensions, and the tensor has 3"):
        GRID.get_op_sharding((0, 1)).on_mesh(3)
    with pytest.raises(ShardingError, match="shards nothing by whole axes"):
        GRID.get_op_sharding((0, 1)).over(FLAT, 2)


def test_linear_layers_and_barriers():
    plain = nn.Linear(8, 4)
    layer = forms.EinsumLinear(8, 4)
    layer.load_state_dict(plain.state_dict())
    layer.to(xla_dynamo.device())
    x = torch.randn(2, 3, 8)
    forms.apply_backward_optimization_barrier(layer)
    given = x.to(xla_dynamo.device()).requires_grad_()
    result = layer(given)
    torch.testing.assert_close(result.cpu(), plain(x))
    torch.testing.assert_close(
        forms.XLAPatchedLinear.apply(given, layer.weight).cpu(), x @ plain.weight.t()
    )
    result.sum().backward()
    plain(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad.cpu(), plain.weight.grad)
    assert forms.with_xla(len) is len
