"""Placements and partition specs, `DTensor`s and marked tensors: each made of the other.

Where several processes are needed, threads stand for them, by torch's process group of threads,
which moves the data. One test starts two real processes.
"""

import itertools
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.common_distributed import spawn_threads_and_init_comms

from tests.spmd.sharding import ONE_AXIS, TALL, WIDE, collectives, kept_shards, mlp, sharded
from xla_dynamo import spmd
from xla_dynamo.errors import ShardingError

SPECS = {
    (Replicate(), Replicate()): (None, None),
    (Shard(0), Replicate()): (0, None),
    (Replicate(), Shard(1)): (None, 1),
    (Shard(1), Shard(0)): (1, 0),
    (Shard(0), Shard(0)): ((0, 1), None),
    (Shard(1), Shard(1)): (None, (0, 1)),
}


def in_processes(count, body):
    """Run a function in as many threads, each with a rank; what one raises is raised here."""
    spawn_threads_and_init_comms(world_size=count)(lambda _: body())(None)


@pytest.fixture
def fake_processes():
    """A process group that pretends to have eight processes."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("placements", SPECS, ids=str)
def test_placements_and_specs(placements):
    spec = SPECS[placements]
    assert spmd.convert_placements_to_partition_spec(placements, 2) == spec
    assert spmd.convert_partition_spec_to_placements(spec, WIDE) == placements


def test_negative_dimensions():
    assert spmd.convert_placements_to_partition_spec([Shard(-1), Shard(-3)], 3) == (1, None, 0)


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([Partial(), Replicate()], "axis 0 .* a term of a sum"),
        ([Shard(0), _StridedShard(0, split_factor=2)], "axis 1 is no Shard or Replicate"),
        ([Shard(2), Replicate()], "shards dimension 2, and the tensor has 2 dimensions"),
        ([Shard(-3), Replicate()], "shards dimension -3"),
    ],
    ids=str,
)
def test_placements_that_no_spec_expresses(placements, message):
    with pytest.raises(ShardingError, match=message):
        spmd.convert_placements_to_partition_spec(placements, 2)


def test_orders_that_no_placements_express():
    with pytest.raises(ShardingError, match="model, data in this order, and placements only"):
        spmd.convert_partition_spec_to_placements((("model", "data"), None), WIDE)
    flat = spmd.Mesh(range(8), (1, 8), ("data", "model"))  # an axis of one device shards nothing
    placements = spmd.convert_partition_spec_to_placements((("model", "data"), None), flat)
    assert placements == (Shard(0), Shard(0))
    with pytest.raises(ShardingError, match="names the axis 'nope'"):
        spmd.convert_partition_spec_to_placements(("nope",), WIDE)


def test_meshes():
    device_mesh = spmd.to_device_mesh(WIDE)
    assert device_mesh.device_type == "xla"
    assert device_mesh.mesh.tolist() == WIDE.get_logical_mesh().tolist()
    assert spmd.mesh_from_device_mesh(device_mesh) == WIDE
    assert spmd.mesh_from_device_mesh(WIDE) is WIDE
    unnamed = DeviceMesh("xla", [[5, 2], [7, 0]])
    assert spmd.mesh_from_device_mesh(unnamed) == spmd.Mesh([5, 2, 7, 0], (2, 2))
    with pytest.raises(ShardingError, match="init_process_group first, or take the type 'xla'"):
        spmd.to_device_mesh(WIDE, "cpu")


@pytest.mark.parametrize("mesh", [WIDE, spmd.to_device_mesh(WIDE)], ids=["Mesh", "DeviceMesh"])
def test_distribute_tensor(mesh):
    t = torch.randn(8, 16)
    assert spmd.xla_distribute_tensor(t, mesh, [Shard(1), Shard(0)]) is t
    assert spmd.sharding_of(t).axes == (("model",), ("data",))
    spmd.xla_distribute_tensor(t, mesh)
    assert spmd.sharding_of(t).tiling().is_whole
    with pytest.raises(ShardingError, match=r"2 axes, and 1 placements .* shape \(8, 16\)"):
        spmd.xla_distribute_tensor(t, mesh, [Shard(0)])
    with pytest.raises(ShardingError, match="6 is not divisible by 4"):
        spmd.xla_distribute_tensor(torch.randn(8, 6), mesh, [Shard(0), Shard(1)])


def test_distribute_tensor_in_a_compiled_region():
    x = torch.randn(8, 16)
    fn = lambda x: spmd.xla_distribute_tensor(x.sin(), WIDE, [Shard(0), Shard(1)]) * 2  # noqa: E731
    result, executable = sharded(fn, x)
    torch.testing.assert_close(result, x.sin() * 2)
    assert "sdy.sharding_constraint" in executable.stablehlo
    assert "f32[4,4]" in executable.hlo


def test_distribute_module():
    """Megatron's two layers by `distribute_module`'s functions: one sum over the devices."""
    device_mesh, x = spmd.to_device_mesh(WIDE), torch.randn(16, 32)

    def partition(name, layer, mesh):
        assert mesh is device_mesh
        if isinstance(layer, torch.nn.Linear):
            dim = {"0": 0, "2": 1}[name]
            layer.weight = torch.nn.Parameter(
                spmd.xla_distribute_tensor(layer.weight, mesh, [Replicate(), Shard(dim)])
            )

    def shard_inputs(_, args, mesh):
        return tuple(spmd.xla_distribute_tensor(a, mesh, [Shard(0), Replicate()]) for a in args)

    def twice(_, result, mesh):
        return spmd.xla_distribute_tensor(result * 2, mesh, [Shard(0), Replicate()])

    model = mlp()
    wanted = model(x) * 2
    same = spmd.xla_distribute_module(model, device_mesh, partition, shard_inputs, twice)
    assert same is model
    with torch.no_grad():
        result, executable = sharded(model, x)
    torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    assert collectives(executable)["all-reduce"] == 1
    assert kept_shards(model[0].weight) == [[(16, 32)] * 8]
    with pytest.raises(ShardingError, match="input_fn takes three arguments"):
        spmd.xla_distribute_module(model, WIDE, input_fn=lambda args, mesh: args)


@pytest.mark.parametrize("mesh", [WIDE, TALL], ids=["2x4", "4x2"])
def test_there_and_back(mesh):
    wholes = [
        spmd.mark_sharding(torch.randn(16, 8, requires_grad=True), mesh, spec)
        for spec in SPECS.values()
    ]
    wholes.append(torch.randn(3, 5))  # without a mark

    def body():
        device_mesh = spmd.to_device_mesh(mesh, "cpu")
        for whole in wholes:
            dtensor = spmd.to_dtensor(whole, device_mesh)
            assert dtensor.requires_grad == whole.requires_grad
            sharding = spmd.sharding_of(whole)
            if sharding is not None:
                shard = sharding.tiling().slices(whole.shape)[dist.get_rank()]
                assert torch.equal(dtensor.to_local(), whole[shard])
            back = spmd.from_dtensor(dtensor)
            assert back is not whole
            assert torch.equal(back, whole)
            assert back.requires_grad == whole.requires_grad
            assert sharding in (None, spmd.sharding_of(back))

    in_processes(8, body)


def test_what_torch_distributes():
    """Torch's own `distribute_tensor` and a product of DTensors, as marked tensors."""
    a, b = torch.randn(8, 16), torch.randn(16, 4)
    devices = spmd.Mesh([7, 6, 5, 4, 3, 2, 1, 0], (2, 4), ("rows", "columns"))

    def body():
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "model"))
        product = distribute_tensor(a, mesh, [Shard(0), Replicate()]) @ distribute_tensor(
            b, mesh, [Replicate(), Shard(1)]
        )
        whole = spmd.from_dtensor(product, devices)
        torch.testing.assert_close(whole, a @ b)
        assert spmd.sharding_of(whole).mesh == devices
        assert spmd.sharding_of(whole).axes == (("rows",), ("columns",))
        partial = distribute_tensor(a, mesh, [Shard(1), Replicate()]) @ distribute_tensor(
            b, mesh, [Shard(0), Replicate()]
        )
        with pytest.raises(ShardingError, match=r"Redistribute the DTensor to Replicate\(\)"):
            spmd.from_dtensor(partial)
        whole = spmd.from_dtensor(partial.redistribute(placements=[Shard(0), Replicate()]))
        torch.testing.assert_close(whole, a @ b)
        uneven = distribute_tensor(torch.randn(7, 2), mesh, [Shard(0), Replicate()])
        with pytest.raises(ShardingError, match="7 is not divisible by 2"):
            spmd.from_dtensor(uneven)
        with pytest.raises(ShardingError, match="has not the shape"):
            spmd.from_dtensor(product, ONE_AXIS)
        with pytest.raises(ShardingError, match="is a DTensor already"):
            spmd.xla_distribute_tensor(product, devices)

    in_processes(8, body)


def test_meshes_that_differ():
    marked = spmd.mark_sharding(torch.randn(8, 8), WIDE, ("data", "model"))
    with pytest.raises(ShardingError, match="'xla' is one of the devices of one process"):
        spmd.to_dtensor(marked, spmd.to_device_mesh(WIDE))

    def body():
        for other in (TALL, spmd.Mesh(range(8), (2, 4), ("a", "b"))):
            with pytest.raises(ShardingError, match="another shape or other names"):
                spmd.to_dtensor(marked, spmd.to_device_mesh(other, "cpu"))

    in_processes(8, body)


@pytest.mark.usefixtures("fake_processes")
def test_processes_that_are_not_there():
    """A fake group moves no data: a shard can be taken, and no whole be put together."""
    whole = spmd.mark_sharding(torch.randn(8, 16), WIDE, ("data", "model"))
    mesh = spmd.to_device_mesh(WIDE, "cpu")
    dtensor = spmd.to_dtensor(whole, mesh)
    assert torch.equal(dtensor.to_local(), whole[:4, 12:])  # of rank 3
    with pytest.raises(ShardingError, match="only pretends to have: its process group is a fake"):
        spmd.from_dtensor(dtensor)
    everywhere = spmd.to_dtensor(torch.ones(3), mesh)
    assert torch.equal(spmd.from_dtensor(everywhere), torch.ones(3))


def test_torchs_function_on_a_mesh_of_xla():
    """Torch looks for torch_xla there: the seam that docs/sharding.md describes."""
    mesh = spmd.to_device_mesh(WIDE)
    with pytest.raises(ImportError, match="install the torch_xla package"):
        distribute_tensor(torch.randn(8, 8), mesh, [Shard(0), Replicate()])


PROCESS = """
import sys
import torch
import torch.distributed as dist
from xla_dynamo import spmd

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
mesh = spmd.Mesh(range(2), (2,), ("x",))
whole = spmd.mark_sharding(torch.arange(24.0).reshape(4, 6), mesh, (None, "x"))
dtensor = spmd.to_dtensor(whole, spmd.to_device_mesh(mesh, "cpu"))
assert torch.equal(dtensor.to_local(), whole[:, 3 * rank : 3 * rank + 3])
back = spmd.from_dtensor(dtensor + 1)
assert torch.equal(back, whole + 1)
assert spmd.sharding_of(back) == spmd.sharding_of(whole)
fast = torch.compile(lambda x: x.square().sum(), backend="openxla")
torch.testing.assert_close(fast(back), (whole + 1).square().sum())
dist.destroy_process_group()
print("done")
"""


@pytest.mark.slow  # each imports all of it
def test_two_processes(tmp_path):
    """Real ones: a DTensor of both becomes a marked tensor of each, which compiled code reads."""
    command = [sys.executable, "-c", PROCESS]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in started:
        out, err = process.communicate(timeout=300)
        assert out.strip() == "done", err


def test_all_pairs_of_placements_shard_alike():
    """The shard that torch's placements give a rank is the one that the mark gives a device."""
    kinds = [Replicate(), Shard(0), Shard(1), Shard(2)]
    whole = torch.arange(8 * 16 * 8).reshape(8, 16, 8)

    def body():
        mesh = spmd.to_device_mesh(WIDE, "cpu")
        for placements in itertools.product(kinds, repeat=2):
            spec = spmd.convert_placements_to_partition_spec(placements, 3)
            marked = spmd.mark_sharding(whole.clone(), WIDE, spec)
            shard = spmd.sharding_of(marked).tiling().slices(whole.shape)[dist.get_rank()]
            local = distribute_tensor(whole, mesh, placements).to_local()
            assert torch.equal(local, whole[shard]), placements

    in_processes(8, body)
