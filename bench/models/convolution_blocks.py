"""What convolutional networks in plain torch are built of: convolutions, heads, branches."""

import torch
from torch import nn


class Concat(nn.Module):
    """What every branch makes of the same images, side by side in the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Halves(nn.Module):
    """The first half of the channels as they are, the second through a branch."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, 1)
        return torch.cat([first, self.branch(second)], 1)


class Residual(nn.Module):
    """The sum of a branch and a shortcut."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branch(x) + self.shortcut(x)


def conv(
    inner: int, outer: int, kernel: int = 3, stride: int = 1, groups: int = 1, relu: bool = True
) -> nn.Sequential:
    """A convolution that keeps the size (or halves it), a batch norm, and a ReLU if wanted."""
    layers = [
        nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
    ]
    return nn.Sequential(*layers, nn.ReLU()) if relu else nn.Sequential(*layers)


def plain(inner: int, outer: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> list:
    """A convolution with a bias, and a ReLU: what networks were made of before batch norm."""
    return [nn.Conv2d(inner, outer, kernel, stride, padding), nn.ReLU()]


def dense_head(features: int, hidden: int) -> list[nn.Module]:
    """The two wide hidden layers that AlexNet and VGG end with."""
    return [
        nn.Flatten(), nn.Dropout(), nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(),
        nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1000),
    ]  # fmt: skip


def pooled_head(features: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, 1000)]


def keep_scale(model: nn.Module) -> None:
    """Draw weights anew that keep the scale of activations, whatever the depth."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    for module in model.modules():
        if isinstance(module, Residual):  # or every sum would triple the variance
            module.branch[-1][0].weight.data.mul_(0.5)
