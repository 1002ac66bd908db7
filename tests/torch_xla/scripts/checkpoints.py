"""Checkpoints and resuming: xm.save, streamed files, planners, and CheckpointManager."""

import os
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dist_cp
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_backend
import torch_xla.experimental.distributed_checkpoint as xc
import torch_xla.runtime as xr
import torch_xla.utils.serialization as xser
from torch import nn
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, prime_optimizer

HOST = torch.device("cpu")


def new_model(seed=7):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 8))


def new_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps, device):
    losses = []
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x, y = (torch.randn(8, n, generator=generator).to(device) for n in (16, 8))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
    return losses


def sharded(model, device, mesh):
    model = model.to(device)
    for p in model.parameters():
        xs.mark_sharding(p, mesh, ("fsdp", None) if p.dim() == 2 else ("fsdp",))
    return model


def main(folder):
    xr.use_spmd()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    device = torch_xla.device()
    count = xr.global_runtime_device_count()
    mesh = xs.Mesh(np.arange(count), (count,), ("fsdp",))
    reference = new_model()
    wanted = train(reference, new_optimizer(reference), range(8), HOST)

    def resumed(model, optimizer, start):
        got = train(model, optimizer, range(start, 8), device)
        torch.testing.assert_close(got, wanted[start:], atol=1e-4, rtol=1e-4)

    model = sharded(new_model(), device, mesh)
    optimizer = new_optimizer(model)
    got = train(model, optimizer, range(4), device)
    torch.testing.assert_close(got, wanted[:4], atol=1e-4, rtol=1e-4)

    path = os.path.join(folder, "model.pt")
    xm.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 4}, path)
    state = torch.load(path)
    assert state["epoch"] == 4
    assert state["model"]["0.weight"].device == HOST
    other = new_model(8)
    other.load_state_dict(state["model"])
    other = other.to(device)
    of_other = new_optimizer(other)
    of_other.load_state_dict(state["optim"])
    resumed(other, of_other, 4)

    xser.save(model.state_dict(), os.path.join(folder, "streamed"))
    other = new_model(8)
    other.load_state_dict(xser.load(os.path.join(folder, "streamed")))
    assert torch.equal(other[0].weight, model[0].weight.cpu())

    planned = os.path.join(folder, "planned")
    writer = dist_cp.FileSystemWriter(planned)
    dist_cp.save({"model": model.state_dict()}, storage_writer=writer, planner=xc.SPMDSavePlanner())
    other = sharded(new_model(9), device, mesh)
    state = {"model": other.state_dict()}
    reader = dist_cp.FileSystemReader(planned)
    dist_cp.load(state_dict=state, storage_reader=reader, planner=xc.SPMDLoadPlanner())
    other.load_state_dict(state["model"])
    assert torch.equal(other[2].weight.cpu(), model[2].weight.cpu())

    manager = CheckpointManager(os.path.join(folder, "managed"), save_interval=2, max_to_keep=2)
    taken = []
    for step in range(4, 7):
        state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
        if manager.save(step, state):
            taken.append(step)
        if step < 6:
            train(model, optimizer, [step], device)
    assert taken == [4, 6] == sorted(manager.all_steps())
    other = sharded(new_model(5), device, mesh)
    of_other = new_optimizer(other)
    best = max(manager.all_steps())
    prime_optimizer(of_other)
    state = {"model": other.state_dict(), "optim": of_other.state_dict()}
    manager.restore(best, state)
    other.load_state_dict(state["model"])
    of_other.load_state_dict(state["optim"])
    resumed(other, of_other, best)
    if manager.save_async(8, {"model": other.state_dict()}, force=True):
        manager.join()
    assert sorted(manager.all_steps()) == [6, 8]
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
    print("ended")
