"""Models whose parameters are frozen, and the comparison of their inference with eager's."""

import torch
from torch import nn

from tests.compiling import assert_matches_eager, compiled


def frozen(model, *, fullgraph=False, **how):
    """Compile with the option `freeze`."""
    return compiled(model, fullgraph=fullgraph, freeze=True, **how)


def check_inference(run, *args, **how):
    """Compare with eager as `assert_matches_eager` does, without gradients."""
    with torch.no_grad():
        assert_matches_eager(run, *args, **how)


class Scaled(nn.Module):
    """exp of a parameter, which is worth keeping, and a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))
        self.register_buffer("offset", torch.randn(5))

    def forward(self, x):
        return x * self.weight.exp() + self.offset.sin()


class LargeScaled(Scaled):
    """The same with a weight that is too large to be compared bit by bit."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2000, 5))


def add_one(model):
    """Change the weight in place, as an optimizer does."""
    with torch.no_grad():
        model.weight.add_(1)
