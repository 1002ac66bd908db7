"""Gradients of several batches, one step of the optimizer: PyTorch/XLA's two ways of doing it.

    python -m docs.examples.migration.gradient_accumulation --steps 8

There a Python loop unrolls the batches into one graph, or `gradient_accumulation` makes a loop of
them. `train_step(accumulation_steps=)` has two executables instead, one that adds gradients up and
one that steps, whatever their number is.
"""

import argparse
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

import xla_dynamo


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Train; the losses of all batches."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8, help="of the optimizer")
    parser.add_argument("--accumulate", type=int, default=4, help="batches for each step")
    options = parser.parse_args(arguments)
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 10))
    step = xla_dynamo.train_step(
        model,
        lambda m, x, y: F.cross_entropy(m(x), y),
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        accumulation_steps=options.accumulate,
    )
    centres = torch.randn(10, 64)
    losses = []
    for number in range(options.steps * options.accumulate):
        y = torch.randint(10, (32,))
        losses.append(step(centres[y] + torch.randn(32, 64), y).item())
        if (number + 1) % options.accumulate == 0:
            mean = sum(losses[-options.accumulate :]) / options.accumulate
            print(f"step {(number + 1) // options.accumulate}: loss {mean:.3f}")
    return losses


if __name__ == "__main__":
    main()
