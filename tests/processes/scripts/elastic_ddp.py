"""The calls of `elastic_ddp.py` in the tutorial of DDP, and DDP's options.

https://github.com/pytorch/tutorials/blob/main/intermediate_source/ddp_tutorial.rst
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import xla_dynamo
from tests.processes.scripts import toy
from xla_dynamo.runtime import metrics

xla_dynamo.device()

OPTIONS = {
    "tutorial": {},
    "unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"static_graph": True, "gradient_as_bucket_view": True},
}


def demo_basic(head, **options):
    torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    accelerator = torch.accelerator.current_accelerator()
    backend = dist.get_default_backend_for_device(accelerator)
    dist.init_process_group(backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    device_id = rank % torch.accelerator.device_count()
    model = toy.new_model().to(device_id)
    if not options:
        del model.other  # without options, DDP wants all parameters to be used
    ddp_model = DistributedDataParallel(model, device_ids=[device_id], **options)
    loss_fn, optimizer = nn.MSELoss(), toy.new_optimizer(ddp_model)
    losses = []
    for step in range(toy.STEPS):
        x, labels = toy.rows(step, rank, size)
        optimizer.zero_grad()
        outputs = ddp_model(x, head(step, rank))
        loss = loss_fn(outputs, labels.to(device_id))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


def programs_of_later_steps():
    """How many programs a loop makes that reads no value and ends no step, after three steps."""
    dist.init_process_group("xla")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(toy.new_model().to("xla"), find_unused_parameters=True)
    optimizer = toy.new_optimizer(model)
    total, made = torch.zeros((), device="xla"), []
    for step in range(12):
        x, labels = toy.rows(step % toy.STEPS, rank, size)
        loss = nn.MSELoss()(model(x.to("xla")), labels.to("xla"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        counts = [metrics.counter_value(n) or 0 for n in ("UncachedCompile", "PersistentCacheHit")]
        made.append(sum(counts))
    dist.destroy_process_group()
    return made[-1] - made[3]


if __name__ == "__main__":
    losses = {
        name: demo_basic(toy.head_of if name == "unused" else lambda step, rank: 0, **options)
        for name, options in OPTIONS.items()
    }
    found = {"losses": losses, "later programs": programs_of_later_steps()}
    toy.hand_over(sys.argv[1], os.environ["RANK"], found)
