"""A loop of accelerate: `Accelerator.prepare`, `backward`, `gather`, `reduce`.

accelerate has a list of devices, and takes any other for the CPU's way of several processes: on a
process group that is there already, and on the device of ACCELERATE_TORCH_DEVICE.
"""

import os
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

import xla_dynamo
from tests.processes.scripts import toy


def main():
    xla_dynamo.device()
    torch.distributed.init_process_group("xla")
    os.environ["ACCELERATE_TORCH_DEVICE"] = "xla:0"
    accelerator = Accelerator(cpu=True)
    assert accelerator.device.type == "xla"
    assert accelerator.num_processes == int(os.environ["WORLD_SIZE"])
    model = toy.new_model()
    del model.other
    loader = DataLoader(toy.dataset(), batch_size=toy.BATCH // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, toy.new_optimizer(model), loader)
    losses = []
    for x, labels in loader:
        assert x.device.type == "xla"
        optimizer.zero_grad()
        loss = nn.MSELoss()(model(x), labels)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1e3)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    assert accelerator.reduce(torch.ones((), device="xla")) == accelerator.num_processes
    accelerator.wait_for_everyone()
    toy.hand_over(sys.argv[1], accelerator.process_index, losses)
    accelerator.end_training()


if __name__ == "__main__":
    main()
