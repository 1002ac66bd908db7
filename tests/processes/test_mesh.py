"""One mesh over the devices of several processes: a partitioned training step, and its shards."""

import pytest
import torch

import xla_dynamo
from tests.processes.jobs import results_of
from tests.processes.small_gpt import batches, loss_fn, losses_alone, new_model
from xla_dynamo import runtime, spmd

# LLVM is most of the time otherwise; what XLA's partitioner does is the same.
QUICK = {"xla_options": {"xla_backend_optimization_level": 0}}


def train_fully_sharded():
    """Losses of rows that each process has loaded, and the bytes of shards that it holds."""
    rank, size, count = runtime.process_index(), runtime.world_size(), devices()
    mesh = spmd.get_1d_mesh("data")
    model = new_model().to(xla_dynamo.device())
    for p in model.parameters():
        spmd.mark_sharding(p, mesh, ("data", *[None] * (p.dim() - 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = xla_dynamo.train_step(model, loss_fn, optimizer, options=QUICK)
    spec = spmd.ShardingSpec(mesh, ("data", None), minibatch=True)
    loader = xla_dynamo.MpDeviceLoader(batches(rank, size), "xla", input_sharding=spec)
    losses = [step(tokens, labels).item() for tokens, labels in loader]
    shards = [shard_bytes(p) * count / (p.numel() * 4) for p in model.parameters()]
    state = [s["exp_avg"] for s in optimizer.state.values()]
    shards += [shard_bytes(s) * count / (s.numel() * 4) for s in state]
    whole = model.head.weight.detach().cpu()  # gathered from all processes
    return losses, shards, runtime.addressable_runtime_device_count(), whole


def train_from_host_memory():
    """Losses with parameters of the CPU, which each process has whole."""
    mesh = spmd.get_1d_mesh("data")
    model = new_model()
    spmd.mark_sharding(model.head.weight, mesh, (None, "data"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = xla_dynamo.train_step(model, loss_fn, optimizer, options=QUICK)
    losses = []
    for tokens, labels in batches(steps=3):
        rows = [spmd.mark_sharding(t, mesh, ("data", None)) for t in (tokens, labels)]
        losses.append(step(*rows).item())
    return losses


def mesh_jobs():
    """All of them, in one job; the last one changes what programs do from then on."""
    shown = train_fully_sharded(), train_from_host_memory(), moved(), names()
    return *shown, train_by_automatic_shardings()


def train_by_automatic_shardings():
    """Losses of a loop on the device that marks nothing, and whether a weight is sharded."""
    runtime.use_spmd(auto=True)
    spmd.set_global_mesh(spmd.get_1d_mesh("data"))  # no other is tried
    model = new_model().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for tokens, labels in batches(steps=3):
        optimizer.zero_grad()
        loss = loss_fn(model, tokens.to("xla"), labels.to("xla"))
        loss.backward()
        optimizer.step()
        xla_dynamo.sync()
        losses.append(loss.item())
    return losses, any(spmd.sharding_of(model.head.weight).axes)


def moved():
    """A tensor that two meshes shard in turn, and an uneven result, gathered."""
    count = devices()
    rows, columns = (
        spmd.Mesh(range(count), (count,), ("x",)),
        spmd.Mesh(range(count), (1, count), ("x", "y")),
    )
    x = torch.arange(8.0 * count).reshape(count, 8).to("xla")
    spmd.mark_sharding(x, rows, ("x", None))
    y = spmd.mark_sharding(x * 2, columns, (None, "y"))
    uneven = spmd.mark_sharding(torch.ones(count + 1, device="xla") * 3, rows, ("x",))
    xla_dynamo.sync()
    return y.cpu(), (uneven + 1).cpu()


def names():
    """What PyTorch/XLA's functions say."""
    return (
        runtime.global_runtime_device_count(),
        runtime.addressable_runtime_device_count(),
        runtime.process_count(),
        runtime.process_index(),
        runtime.local_ordinal(),
        runtime.local_process_count(),
        [d["name"] for d in runtime.global_runtime_device_attributes()],
    )


def devices():
    return runtime.global_runtime_device_count()


def shard_bytes(tensor):
    """The bytes of the first shard that this process has of a tensor of the device."""
    from xla_dynamo.lazy.contents import cell_of
    from xla_dynamo.runtime.jaxlib_private import shards_of

    return shards_of(cell_of(tensor).value.buffer)[0].nbytes


def check(processes, devices_each):
    alone, count = losses_alone(), processes * devices_each
    for rank, result in enumerate(results_of(mesh_jobs, processes, devices_each)):
        (losses, shards, own, whole), from_host, (y, uneven), told, (automatic, sharded) = result
        torch.testing.assert_close(torch.tensor(losses), alone, rtol=1e-4, atol=0)
        torch.testing.assert_close(torch.tensor(from_host), alone[:3], rtol=1e-4, atol=0)
        torch.testing.assert_close(torch.tensor(automatic), alone[:3], rtol=1e-4, atol=0)
        assert sharded
        assert set(shards) == {1.0}, "a device has its part of each parameter and state, no more"
        assert own == devices_each
        assert whole.shape == (64, 32)
        assert y.equal(torch.arange(8.0 * count).reshape(count, 8) * 2)
        assert uneven.equal(torch.full((count + 1,), 4.0))
        names = [f"CPU:{i}" for i in range(count)]
        assert told == (count, devices_each, processes, rank, rank, processes, names)


def test_two_processes_of_two_devices():
    check(2, 2)


@pytest.mark.slow
def test_four_processes_of_two_devices():
    check(4, 2)
