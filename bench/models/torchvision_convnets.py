"""The convolutional networks of torchvision, written here from their papers in plain torch.

Sizes at "full" are those of torchvision's models of the same names. Each is a function from widths
and depths to a `Sequential`, made of `convolution_blocks`.
"""

from collections.abc import Callable, Sequence

from torch import nn

from bench.models.convolution_blocks import (
    Concat,
    Halves,
    Residual,
    conv,
    dense_head,
    keep_scale,
    plain,
    pooled_head,
)
from bench.models.inputs import images
from bench.models.registry import register

_IMAGES = images(224, 64, "input")


def _register(
    name: str, function: Callable[..., nn.Sequential], full: dict, tiny: dict, batch: int = 4
) -> None:
    def make(**sizes: object) -> nn.Sequential:
        model = function(**sizes)
        keep_scale(model)
        return model

    register(name, make, full, tiny, _IMAGES, family="convnet", batch=batch)


def alexnet(width: int, hidden: int) -> nn.Sequential:
    """Krizhevsky 2014 (arXiv:1404.5997)."""
    w = width
    return nn.Sequential(
        *plain(3, w, 11, 4, 2), nn.MaxPool2d(3, 2), *plain(w, 3 * w, 5, 1, 2), nn.MaxPool2d(3, 2),
        *plain(3 * w, 6 * w), *plain(6 * w, 4 * w), *plain(4 * w, 4 * w),
        nn.MaxPool2d(3, 2, padding=1), nn.AdaptiveAvgPool2d(6), *dense_head(4 * w * 36, hidden),
    )  # fmt: skip


def vgg(widths: Sequence[int], convolutions: Sequence[int], hidden: int) -> nn.Sequential:
    """Simonyan & Zisserman 2014 (arXiv:1409.1556)."""
    layers: list[nn.Module] = []
    inner = 3
    for outer, count in zip(widths, convolutions, strict=True):
        for _ in range(count):
            layers += plain(inner, outer)
            inner = outer
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), *dense_head(inner * 49, hidden))


def squeezenet(width: int) -> nn.Sequential:
    """SqueezeNet 1.1, Iandola et al. 2016 (arXiv:1602.07360)."""
    w = width

    def fire(inner: int, squeezed: int, expanded: int) -> nn.Sequential:
        one = nn.Sequential(*plain(squeezed, expanded, 1, padding=0))
        three = nn.Sequential(*plain(squeezed, expanded))
        return nn.Sequential(*plain(inner, squeezed, 1, padding=0), Concat(one, three))

    def pool() -> nn.Module:
        return nn.MaxPool2d(3, 2, ceil_mode=True)

    return nn.Sequential(
        *plain(3, 4 * w, 3, 2, 0), pool(), fire(4 * w, w, 4 * w), fire(8 * w, w, 4 * w), pool(),
        fire(8 * w, 2 * w, 8 * w), fire(16 * w, 2 * w, 8 * w), pool(),
        fire(16 * w, 3 * w, 12 * w), fire(24 * w, 3 * w, 12 * w), fire(24 * w, 4 * w, 16 * w),
        fire(32 * w, 4 * w, 16 * w), nn.Dropout(), *plain(32 * w, 1000, 1, padding=0),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def densenet(growth: int, depths: Sequence[int]) -> nn.Sequential:
    """Huang et al. 2016 (arXiv:1608.06993)."""

    def before(inner: int, outer: int, kernel: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inner, outer, kernel, padding=kernel // 2, bias=False)
        return [nn.BatchNorm2d(inner), nn.ReLU(), convolution]

    channels = 2 * growth
    layers: list[nn.Module] = [*conv(3, channels, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for stage, depth in enumerate(depths):
        if stage:
            layers += [*before(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(depth):
            new = [*before(channels, 4 * growth, 1), *before(4 * growth, growth, 3)]
            layers.append(Concat(nn.Identity(), nn.Sequential(*new)))
            channels += growth
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *pooled_head(channels))


# Inputs, and the outputs of the branches: 1x1, 1x1 before 3x3, 3x3, 1x1 before "5x5", that, pool.
_INCEPTIONS = (
    (192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64),
    (480, 192, 96, 208, 16, 48, 64), (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64), (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128), (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
)  # fmt: skip


def googlenet(divisor: int) -> nn.Sequential:
    """Szegedy et al. 2014 (arXiv:1409.4842), without its auxiliary heads."""

    def inception(inner: int, *outer: int) -> Concat:
        one, before_three, three, before_five, five, pooled = outer
        return Concat(
            conv(inner, one, 1),
            nn.Sequential(conv(inner, before_three, 1), conv(before_three, three)),
            nn.Sequential(conv(inner, before_five, 1), conv(before_five, five)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inner, pooled, 1)),
        )

    def pool(kernel: int = 3) -> nn.Module:
        return nn.MaxPool2d(kernel, 2, ceil_mode=True)

    w = 64 // divisor
    blocks: list[nn.Module] = []
    for index, channels in enumerate(_INCEPTIONS):
        if index in (2, 7):
            blocks.append(pool(3 if index == 2 else 2))
        blocks.append(inception(*(c // divisor for c in channels)))
    return nn.Sequential(
        conv(3, w, 7, 2), pool(), conv(w, w, 1), conv(w, 3 * w), pool(), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1024 // divisor, 1000),
    )  # fmt: skip


def shufflenet(widths: Sequence[int], depths: Sequence[int]) -> nn.Sequential:
    """ShuffleNet v2, Ma et al. 2018 (arXiv:1807.11164); the last width is the head's."""

    def branch(inner: int, outer: int, stride: int) -> nn.Sequential:
        depthwise = conv(outer, outer, 3, stride, groups=outer, relu=False)
        return nn.Sequential(conv(inner, outer, 1), depthwise, conv(outer, outer, 1))

    stem, *stages, head = widths
    layers: list[nn.Module] = [conv(3, stem, 3, 2), nn.MaxPool2d(3, 2, 1)]
    inner = stem
    for outer, depth in zip(stages, depths, strict=True):
        half = outer // 2
        shortcut = nn.Sequential(
            conv(inner, inner, 3, 2, groups=inner, relu=False), conv(inner, half, 1)
        )
        layers += [Concat(shortcut, branch(inner, half, 2)), nn.ChannelShuffle(2)]
        for _ in range(depth - 1):
            layers += [Halves(branch(half, half, 1)), nn.ChannelShuffle(2)]
        inner = outer
    return nn.Sequential(*layers, conv(inner, head, 1), *pooled_head(head))


def mnasnet(width: int, depths: Sequence[int]) -> nn.Sequential:
    """MnasNet B1, Tan et al. 2018 (arXiv:1807.11626)."""
    w = width
    layers: list[nn.Module] = [
        conv(3, 4 * w, 3, 2), conv(4 * w, 4 * w, groups=4 * w), conv(4 * w, 2 * w, 1, relu=False)
    ]  # fmt: skip
    inner = 2 * w
    stages = [(3 * w, 3, 2, 3), (5 * w, 5, 2, 3), (10 * w, 5, 2, 6), (12 * w, 3, 1, 6),
              (24 * w, 5, 2, 6), (40 * w, 3, 1, 6)]  # fmt: skip
    for (outer, kernel, stride, expansion), depth in zip(stages, depths, strict=True):
        for index in range(depth):
            wide = inner * expansion
            branch = nn.Sequential(
                conv(inner, wide, 1),
                conv(wide, wide, kernel, 1 if index else stride, groups=wide),
                conv(wide, outer, 1, relu=False),
            )
            layers.append(Residual(branch) if index else branch)
            inner = outer
    return nn.Sequential(*layers, conv(inner, 160 * w, 1), *pooled_head(160 * w))


def resnet(width: int, groups: int, depths: Sequence[int], stem: int) -> nn.Sequential:
    """ResNeXt, Xie et al. 2016 (arXiv:1611.05431); Wide ResNet (arXiv:1605.07146) has one group.

    `width` is what the 3x3 convolutions of the first stage have; torchvision strides in these.
    """
    layers: list[nn.Module] = [conv(3, stem, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inner = stem
    for stage, depth in enumerate(depths):
        middle, outer = width << stage, 4 * stem << stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            branch = nn.Sequential(
                conv(inner, middle, 1),
                conv(middle, middle, 3, stride, groups),
                conv(middle, outer, 1, relu=False),
            )
            shortcut = None if index else conv(inner, outer, 1, stride, relu=False)
            layers += [Residual(branch, shortcut), nn.ReLU()]
            inner = outer
    return nn.Sequential(*layers, *pooled_head(inner))


_register("alexnet", alexnet, {"width": 64, "hidden": 4096}, {"width": 4, "hidden": 32})
_VGG = {"widths": (64, 128, 256, 512, 512), "convolutions": (2, 2, 3, 3, 3), "hidden": 4096}
_register(
    "vgg16", vgg, _VGG, {"widths": (4, 8, 8), "convolutions": (1, 2, 1), "hidden": 32}, batch=2
)
_register("squeezenet1_1", squeezenet, {"width": 16}, {"width": 4})
_register(
    "densenet121", densenet, {"growth": 32, "depths": (6, 12, 24, 16)},
    {"growth": 4, "depths": (2, 2)},
)  # fmt: skip
_register("googlenet", googlenet, {"divisor": 1}, {"divisor": 8})
_register(
    "shufflenet_v2_x1_0", shufflenet,
    {"widths": (24, 116, 232, 464, 1024), "depths": (4, 8, 4)},
    {"widths": (8, 16, 24, 32), "depths": (2, 1)},
)  # fmt: skip
_register(
    "mnasnet1_0", mnasnet, {"width": 8, "depths": (3, 3, 3, 2, 4, 1)},
    {"width": 1, "depths": (2, 1, 1, 1, 1, 1)},
)  # fmt: skip
_RESNET50 = {"depths": (3, 4, 6, 3), "stem": 64}
_TINY_RESNET = {"depths": (2, 1), "stem": 8, "width": 8}
_register(
    "resnext50", resnet, {**_RESNET50, "width": 128, "groups": 32}, {**_TINY_RESNET, "groups": 4}
)
_register(
    "wide_resnet50", resnet, {**_RESNET50, "width": 128, "groups": 1},
    {**_TINY_RESNET, "groups": 1}, batch=2,
)  # fmt: skip
