"""MNIST, on made-up digits: the loop of PyTorch/XLA's `train_mnist`.

    python -m docs.examples.migration.mnist --steps 60

There a loader uploads batches, `xm.optimizer_step` marks the step, and a closure prints the loss.
Here the whole step is one executable on ordinary tensors: nothing is uploaded, marked or awaited.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

import xla_dynamo


class Net(nn.Module):
    """28 x 28 grey images to 10 classes."""

    def __init__(self) -> None:
        """Make two convolutions and two layers."""
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.norm = nn.BatchNorm2d(20)
        self.hidden, self.out = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits f32[batch, 10] of images f32[batch, 1, 28, 28]."""
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.max_pool2d(F.relu(self.norm(self.second(x))), 2)
        return self.out(F.relu(self.hidden(x.flatten(1))))


def batches(steps: int, size: int) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    """Noisy pictures of ten patterns, with their numbers."""
    patterns = torch.rand(10, 1, 28, 28)
    labels = torch.randint(10, (steps, size))
    return [(patterns[y] + 0.3 * torch.randn(size, 1, 28, 28), y) for y in labels]


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train; the losses of all steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args(arguments)
    torch.manual_seed(42)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    step = xla_dynamo.train_step(model, lambda m, x, y: F.cross_entropy(m(x), y), optimizer)
    losses = []
    for number, (x, y) in enumerate(batches(options.steps, options.batch)):
        losses.append(step(x, y).item())
        if number % 20 == 0:
            print(f"step {number}: loss {losses[-1]:.3f}")
    model.eval()
    predict = torch.compile(model, backend="openxla")
    with torch.no_grad():
        right = (predict(x).argmax(1) == y).float().mean().item()
    print(f"of the last batch {right:.0%} are right")
    return losses


if __name__ == "__main__":
    main()
