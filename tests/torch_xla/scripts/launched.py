"""A process for each device: collectives, optimizer_step, DistributedDataParallel and FSDP."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_xla.distributed.fsdp import (
    XlaFullyShardedDataParallel,
    consolidate_sharded_model_checkpoints,
)


def new_model():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 4))


def batches(rank, world):
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        x, y = (torch.randn(8, n, generator=generator) for n in (12, 4))
        yield x[rank::world], y[rank::world]


def train(model, loader, device, step=torch.optim.SGD.step):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
        step(optimizer)
        torch_xla.sync()
    return model


def check(state, reference):
    for name, wanted in reference.state_dict().items():
        torch.testing.assert_close(state[name].cpu(), wanted, atol=1e-5, rtol=1e-5)


def _mp_fn(index, folder):
    rank, world, device = xr.global_ordinal(), xr.world_size(), torch_xla.device()
    assert (rank, world) == (index, 2)
    reference = train(new_model(), batches(0, 1), torch.device("cpu"))

    ones = torch.full((3,), float(rank + 1), device=device)  # a number of each process
    assert xm.all_reduce(xm.REDUCE_SUM, ones).tolist() == [3.0] * 3
    xm.all_reduce(xm.REDUCE_MAX, [ones])
    assert ones.tolist() == [2.0] * 3
    mine = torch.arange(4.0, device=device) + 10 * rank
    assert xm.all_gather(mine[:1], dim=0).tolist() == [0.0, 10.0]
    made = xm.reduce_scatter(xm.REDUCE_SUM, mine, 0.5, scatter_dim=0, shard_count=world)
    assert made.tolist() == [[5.0, 6.0], [7.0, 8.0]][rank]
    exchanged = xm.all_to_all(mine, 0, 0, world)
    assert exchanged.tolist() == [[0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]][rank]
    assert xm.collective_permute(mine[:1], pairs=[[0, 1], [1, 0]]).item() == 10 * (1 - rank)
    xm.collective_broadcast([mine], root_ordinal=1)
    assert mine.tolist() == [10.0, 11.0, 12.0, 13.0]
    assert xm.mesh_reduce("loss", rank + 1.0, sum) == 3.0

    model = new_model().to(device)
    xm.broadcast_master_param(model)
    loader = pl.MpDeviceLoader(list(batches(rank, world)), device)
    check(train(model, loader, device, xm.optimizer_step).state_dict(), reference)

    dist.init_process_group("xla", init_method="xla://")
    model = DistributedDataParallel(new_model().to(device), gradient_as_bucket_view=True)
    check(train(model, batches(rank, world), device).module.state_dict(), reference)

    inner = new_model()
    inner[0] = XlaFullyShardedDataParallel(inner[0].to(device))
    model = train(XlaFullyShardedDataParallel(inner.to(device)), batches(rank, world), device)
    path = os.path.join(folder, f"model_rank-{rank:08d}-of-{world:08d}.pth")
    state = {"model": model.state_dict(), "shard_metadata": model.get_shard_metadata()}
    xm.save(state, path, master_only=False)
    xm.rendezvous("saved")
    if xm.is_master_ordinal():
        prefix = os.path.join(folder, "model")
        state, _ = consolidate_sharded_model_checkpoints(prefix, "_rank-*-of-*.pth")
        check(state.get("model", state), reference)
    xm.rendezvous("compared")
    xm.master_print("ended", world)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch_xla.launch(_mp_fn, args=(folder,), debug_single_process="--one" in sys.argv)
