"""MobileNetV3-Large, written from its paper in plain torch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from bench.models.convolution_blocks import Residual, conv, keep_scale
from bench.models.inputs import images
from bench.models.registry import register

# Kernel, expanded and output channels, whether there is squeeze and excitation, activation, stride.
Block = tuple[int, int, int, bool, type[nn.Module], int]

_RELU, _SWISH = nn.ReLU, nn.Hardswish


class Excitation(nn.Module):
    """Channels scaled by what two layers make of their means, Hu et al. 2017 (arXiv:1709.01507)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), nn.ReLU(),
            nn.Conv2d(squeezed, channels, 1), nn.Hardsigmoid(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.layers(x)


def _block(inner: int, block: Block) -> nn.Module:
    kernel, wide, outer, excited, activation, stride = block
    layers: list[nn.Module] = []
    if wide != inner:
        layers += [conv(inner, wide, 1, relu=False), activation()]
    layers += [conv(wide, wide, kernel, stride, wide, relu=False), activation()]
    if excited:
        layers.append(Excitation(wide, -(-wide // 4 // 8) * 8))
    branch = nn.Sequential(*layers, conv(wide, outer, 1, relu=False))
    return Residual(branch) if stride == 1 and inner == outer else branch


def mobilenet_v3(stem: int, blocks: Sequence[Block], last: int, hidden: int) -> nn.Sequential:
    """Howard et al. 2019 (arXiv:1905.02244), table 1."""
    layers: list[nn.Module] = [conv(3, stem, 3, 2, relu=False), nn.Hardswish()]
    inner = stem
    for block in blocks:
        layers.append(_block(inner, block))
        inner = block[2]
    model = nn.Sequential(
        *layers, conv(inner, last, 1, relu=False), nn.Hardswish(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(last, hidden), nn.Hardswish(), nn.Dropout(0.2),
        nn.Linear(hidden, 1000),
    )  # fmt: skip
    keep_scale(model)
    return model


_FULL: dict[str, Any] = {
    "stem": 16, "last": 960, "hidden": 1280,
    "blocks": [
        (3, 16, 16, False, _RELU, 1), (3, 64, 24, False, _RELU, 2), (3, 72, 24, False, _RELU, 1),
        (5, 72, 40, True, _RELU, 2), (5, 120, 40, True, _RELU, 1), (5, 120, 40, True, _RELU, 1),
        (3, 240, 80, False, _SWISH, 2), (3, 200, 80, False, _SWISH, 1),
        (3, 184, 80, False, _SWISH, 1), (3, 184, 80, False, _SWISH, 1),
        (3, 480, 112, True, _SWISH, 1), (3, 672, 112, True, _SWISH, 1),
        (5, 672, 160, True, _SWISH, 2), (5, 960, 160, True, _SWISH, 1),
        (5, 960, 160, True, _SWISH, 1),
    ],
}  # fmt: skip
_TINY: dict[str, Any] = {
    "stem": 8, "last": 32, "hidden": 24,
    "blocks": [
        (3, 8, 8, False, _RELU, 1), (5, 16, 16, True, _RELU, 2), (5, 24, 16, True, _SWISH, 1),
    ],
}  # fmt: skip

register("mobilenet_v3", mobilenet_v3, _FULL, _TINY, images(224, 64, "input"), family="convnet")
