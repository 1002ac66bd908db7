"""Gradients of micro-batches, added up by hand, and by PyTorch/XLA's loop on the device."""

import copy

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as met
from torch import nn
from torch_xla.experimental.gradient_accumulation import gradient_accumulation

STEPS, MICRO, BATCH = 2, 4, 8
torch.manual_seed(0)
device = torch_xla.device()
data = torch.randn(STEPS, MICRO, BATCH, 16)
labels = torch.randint(0, 5, (STEPS, MICRO, BATCH))
reference = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5))
loss_fn = nn.CrossEntropyLoss()


def by_hand(model, device, step_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for batches, targets in zip(data.to(device), labels.to(device), strict=True):
        running = torch.zeros((), device=device)
        for batch, target in zip(batches, targets, strict=True):
            loss = loss_fn(model(batch), target) / MICRO
            loss.backward()
            running += loss.detach()
            torch_xla.sync()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        step_of(optimizer)
        model.zero_grad()
        losses.append(running.item())
    return losses


def in_a_loop(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []

    def train_step(batch, target, count):
        return loss_fn(model(batch), target), count + 1

    for step in range(STEPS):
        optimizer.zero_grad()
        count = torch.zeros((), device=device)
        batches, targets = data[step].to(device), labels[step].to(device)
        torch_xla.sync()
        loss, count = gradient_accumulation(train_step, (batches, targets), model, count)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch_xla.sync()
        losses.append(loss.item())
        assert count.item() == MICRO
    return losses


if __name__ == "__main__":
    models = [copy.deepcopy(reference).to(device) for _ in range(3)]
    wanted = by_hand(reference, torch.device("cpu"), torch.optim.AdamW.step)
    got = by_hand(models[0], device, lambda o: xm.optimizer_step(o, barrier=True))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(in_a_loop(models[1]), wanted, atol=1e-4, rtol=1e-4)
    before = met.metric_data("CompileTime")[0]
    in_a_loop(models[2])
    assert met.metric_data("CompileTime")[0] == before
    print("ended")
