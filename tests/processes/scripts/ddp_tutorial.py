"""The calls of `demo_basic` and `demo_checkpoint` in the tutorial of DDP; nobody launches it.

https://github.com/pytorch/tutorials/blob/main/intermediate_source/ddp_tutorial.rst
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import xla_dynamo
from tests.processes.scripts import toy

xla_dynamo.device()


def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = port
    accelerator = torch.accelerator.current_accelerator()
    backend = dist.get_default_backend_for_device(accelerator)
    dist.init_process_group(backend, rank=rank, world_size=world_size)


def new_ddp_model(rank):
    model = toy.new_model()
    del model.other
    return DistributedDataParallel(model.to(rank), device_ids=[rank])


def train(ddp_model, rank, world_size):
    loss_fn, optimizer = nn.MSELoss(), toy.new_optimizer(ddp_model)
    losses = []
    for step in range(toy.STEPS):
        x, labels = toy.rows(step, rank, world_size)
        optimizer.zero_grad()
        outputs = ddp_model(x)
        loss = loss_fn(outputs, labels.to(rank))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def demo_basic(rank, world_size, port, folder):
    setup(rank, world_size, port)
    toy.hand_over(folder, rank, train(new_ddp_model(rank), rank, world_size))
    dist.destroy_process_group()


def demo_checkpoint(rank, world_size, port, folder):
    setup(rank, world_size, port)
    ddp_model = new_ddp_model(rank)
    path = f"{folder}/model.checkpoint"
    if rank == 0:
        torch.save(ddp_model.state_dict(), path)
    with torch.no_grad():  # what is loaded takes the place of this
        for parameter in ddp_model.parameters():
            parameter.zero_()
    dist.barrier()
    accelerator = torch.accelerator.current_accelerator()
    map_location = {f"{accelerator}:0": f"{accelerator}:{rank}"}
    ddp_model.load_state_dict(torch.load(path, map_location=map_location, weights_only=True))
    toy.hand_over(folder, rank, train(ddp_model, rank, world_size))
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    folder, demo, world_size, port = sys.argv[1:]
    mp.spawn(globals()[demo], args=(int(world_size), port, folder), nprocs=int(world_size))
