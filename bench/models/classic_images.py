"""Small networks of images that everybody has written once: made, enlarged, segmented, mixed."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

from bench.models.inputs import floats, images
from bench.models.registry import register

_register = functools.partial(register, family="classic")


def dcgan_generator(noise: int, width: int, doublings: int) -> nn.Sequential:
    """Noise (noise, 1, 1) to images of side 4 * 2**doublings; Radford et al., arXiv:1511.06434."""
    inner = width << doublings - 1
    layers: list[nn.Module] = [nn.ConvTranspose2d(noise, inner, 4, 1, 0, bias=False)]
    for _ in range(doublings - 1):
        layers += [nn.BatchNorm2d(inner), nn.ReLU()]
        layers.append(nn.ConvTranspose2d(inner, inner // 2, 4, 2, 1, bias=False))
        inner //= 2
    layers += [nn.BatchNorm2d(inner), nn.ReLU(), nn.ConvTranspose2d(inner, 3, 4, 2, 1, bias=False)]
    return nn.Sequential(*layers, nn.Tanh())


def dcgan_discriminator(width: int, halvings: int) -> nn.Sequential:
    """Images of side 4 * 2**halvings to the probability that they are real."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
    for _ in range(halvings - 1):
        layers += [nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False), nn.BatchNorm2d(2 * width)]
        layers.append(nn.LeakyReLU(0.2))
        width *= 2
    return nn.Sequential(*layers, nn.Conv2d(width, 1, 4, 1, 0, bias=False), nn.Sigmoid())


_register(
    "dcgan_generator", dcgan_generator, {"noise": 100, "width": 64, "doublings": 4},
    {"noise": 10, "width": 4, "doublings": 2},
    floats("input", (100, 1, 1), (10, 1, 1)), batch=16,
)  # fmt: skip
_register(
    "dcgan_discriminator", dcgan_discriminator, {"width": 64, "halvings": 4},
    {"width": 4, "halvings": 2}, images(64, 16, "input"), batch=16,
)  # fmt: skip


class SuperResolution(nn.Module):
    """ESPCN: convolutions at the small size, then channels become pixels; arXiv:1609.05158."""

    def __init__(self, times: int, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width // 2, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width // 2, times**2, 3, padding=1), nn.PixelShuffle(times),
        )  # fmt: skip

    def forward(self, luminance: torch.Tensor) -> torch.Tensor:
        return self.layers(luminance)


class BicubicResolution(nn.Module):
    """SRCNN: bicubic interpolation, then convolutions at the large size; arXiv:1501.00092."""

    def __init__(self, times: int, width: int) -> None:
        super().__init__()
        self.times = times
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 9, padding=4), nn.ReLU(),
            nn.Conv2d(width, width // 2, 1), nn.ReLU(), nn.Conv2d(width // 2, 1, 5, padding=2),
        )  # fmt: skip

    def forward(self, luminance: torch.Tensor) -> torch.Tensor:
        return self.layers(F.interpolate(luminance, scale_factor=self.times, mode="bicubic"))


for _name, _resolution in ("super_resolution", SuperResolution), ("srcnn", BicubicResolution):
    _register(
        _name, _resolution, {"times": 3, "width": 64}, {"times": 2, "width": 8},
        floats("luminance", (1, 128, 128), (1, 10, 10)), batch=2,
    )  # fmt: skip


class UNet(nn.Module):
    """Segments images: down, up again, and at each size a bridge; arXiv:1505.04597."""

    def __init__(self, width: int, depth: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth)]
        inner = [3, *widths[:-1]]
        self.down = nn.ModuleList(map(self._block, inner, widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[:-1])
        self.join = nn.ModuleList(self._block(2 * w, w) for w in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def _block(inner: int, outer: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(),
        )  # fmt: skip

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        bridges = [self.down[0](pixel_values)]
        for block in self.down[1:]:
            bridges.append(block(F.max_pool2d(bridges[-1], 2)))
        x = bridges.pop()
        for up, join, bridge in zip(self.up[::-1], self.join[::-1], bridges[::-1], strict=True):
            x = join(torch.cat([bridge, up(x)], 1))
        return self.head(x)


_register(
    "unet_segmentation", UNet, {"width": 32, "depth": 5, "classes": 21},
    {"width": 4, "depth": 3, "classes": 5}, images(128, 16),
)  # fmt: skip


class MlpMixer(nn.Module):
    """Mixes patches, then channels, with perceptrons alone; arXiv:2105.01601."""

    def __init__(self, side: int, patch: int, width: int, depth: int, hidden: tuple) -> None:
        super().__init__()
        patches = (side // patch) ** 2
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.across = nn.ModuleList(self._mlp(patches, hidden[0]) for _ in range(depth))
        self.within = nn.ModuleList(self._mlp(width, hidden[1]) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 1000))

    @staticmethod
    def _mlp(width: int, hidden: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        x = self.embed(pixel_values).flatten(2).mT
        for index, (across, within) in enumerate(zip(self.across, self.within, strict=True)):
            x = x + across(self.norms[2 * index](x).mT).mT
            x = x + within(self.norms[2 * index + 1](x))
        return self.head(x).mean(1)


_register(  # the small one with patches of 16
    "mlp_mixer", MlpMixer,
    {"side": 224, "patch": 16, "width": 512, "depth": 8, "hidden": (256, 2048)},
    {"side": 16, "patch": 4, "width": 12, "depth": 2, "hidden": (8, 24)}, images(224, 16),
)  # fmt: skip
