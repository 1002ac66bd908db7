"""A model of two layers and its rows, for scripts of several processes and for one in eager."""

import json
import pathlib

import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH, STEPS, RATE = 8, 4, 0.1


class ToyModel(nn.Module):
    """The model of the tutorials of DDP, with a second head that only some calls use."""

    def __init__(self):
        super().__init__()
        self.net1, self.relu = nn.Linear(10, 10), nn.ReLU()
        self.net2, self.other = nn.Linear(10, 5), nn.Linear(10, 5)

    def forward(self, x, head=0):
        return (self.other if head else self.net2)(self.relu(self.net1(x)))


def new_model():
    """The model, with the same parameters in all processes."""
    torch.manual_seed(0)
    return ToyModel()


def new_optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


def dataset():
    """Rows and their labels, of `STEPS` batches."""
    generator = torch.Generator().manual_seed(1)
    count = BATCH * STEPS
    return TensorDataset(
        torch.randn(count, 10, generator=generator), torch.randn(count, 5, generator=generator)
    )


def rows(step, rank=0, size=1):
    """The rows of a batch that a process has."""
    own = BATCH // size
    first = step * BATCH + rank * own
    return dataset()[first : first + own]


def head_of(step, rank):
    """Which head a process uses in a step: in some steps all the same, in others not."""
    return (step // 2 + (rank if step % 2 else 0)) % 2


def losses_alone(steps=STEPS, size=1, head=lambda step, rank: 0):
    """The losses of one process in eager, which does what so many processes do together."""
    model = new_model()
    optimizer = new_optimizer(model)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        each = []
        for rank in range(size):
            x, labels = rows(step, rank, size)
            each.append(nn.MSELoss()(model(x, head(step, rank)), labels))
        loss = torch.stack(each).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def hand_over(folder, rank, losses):
    """Leave the losses of a process for the test."""
    pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(losses))
