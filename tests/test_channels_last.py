"""Between calls of libraries images keep their channels last: the same numbers, no image turned."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import xla_dynamo
from tests.comparison import compare_with_exact
from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.kernels import convolution_weight_gradient, onednn_convolution
from xla_dynamo.kernels.libraries import libraries_of
from xla_dynamo.lowerings.target import ONEDNN_PLANS
from xla_dynamo.programs import targets

pytestmark = pytest.mark.skipif(
    "onednn" not in libraries_of("cpu"), reason="there is no library with the channels last here"
)

CHANNELS = 8


@pytest.fixture(autouse=True)
def always(cold, monkeypatch):
    """However little there is to multiply."""
    monkeypatch.setattr(onednn_convolution, "FEWEST_IN_CONVOLUTION", 0)
    monkeypatch.setattr(convolution_weight_gradient, "FEWEST_IN_WEIGHT_GRADIENT", 0)
    torch.manual_seed(0)


def squeeze_and_excite(x):
    return x * x.mean((2, 3), keepdim=True).sigmoid()


def with_tokens(x):
    n, c, h, w = x.shape
    tokens = x.flatten(2).transpose(1, 2)
    return F.layer_norm(tokens, (c,)).transpose(1, 2).reshape(n, c, h, w)


# From an image of 8 channels to an image of 8 channels.
BLOCKS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "a number": lambda x: 2 - x.clamp(-1, 0.5) ** 2,
    "a residual": lambda x: x + x.flip(3).sin(),
    "channels' own": lambda x: x * torch.arange(1.0, 9, dtype=x.dtype).view(1, 8, 1, 1),
    "rows' own": lambda x: x + torch.arange(x.shape[2], dtype=x.dtype).view(-1, 1),
    "images' own": lambda x: x * x.amax((1, 2, 3)).view(-1, 1, 1, 1),
    "a mask": lambda x: torch.where(x > x.mean(), x, -x),
    "maxima of windows": lambda x: F.max_pool2d(x, 3, 1, 1),
    "means of windows": lambda x: F.avg_pool2d(x, (2, 3), 1, (1, 1), True),
    "maxima of channels": lambda x: x - x.amax(1, keepdim=True),
    "softmax of channels": lambda x: x.softmax(1),
    "softmax of columns": lambda x: x.softmax(-1),
    "sums of rows": lambda x: x + x.sum(2, keepdim=True),
    "deviations": lambda x: x / (x.var((0, 2, 3), keepdim=True) + 1),
    "padding": lambda x: F.pad(x, (1, 0, 2, -1), value=0.5),
    "reflection": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "a slice": lambda x: x[:, :, 1:, ::2].repeat(1, 1, 1, 2),
    "halves": lambda x: torch.cat([x[:, 4:], x[:, :4].tanh()], 1),
    "rows": lambda x: torch.cat([x, x[:, :, :1]], 2),
    "group norm": lambda x: F.group_norm(x, 4),
    "instance norm": F.instance_norm,
    "layer norm": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "squeeze and excite": squeeze_and_excite,
    "tokens": with_tokens,
    "turned": lambda x: x.transpose(2, 3) * 2,
    "channels and rows": lambda x: x[:, :, :1].expand(-1, -1, 8, -1).transpose(1, 2) * x[:, :, :1],
    "shuffled": lambda x: F.channel_shuffle(x, 2),
    "places to channels": lambda x: F.pixel_shuffle(F.pixel_unshuffle(F.pad(x, (0, 2)), 1), 1),
    "larger": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "smooth": lambda x: F.interpolate(x, size=(6, 7), mode="bilinear"),
    "cubic": lambda x: F.interpolate(x, size=(5, 9), mode="bicubic", align_corners=True),
    "some rows": lambda x: x[:, :, [2, 0, -1, 2]] + x[:, [1, 0] * 4, :4],
    "some images": lambda x: x[[1, 0, 1]][:2] + x[:, :, [0], [1]].view(2, 8, 1, 1),
    "sums so far": lambda x: x.cumsum(1),
    "places": lambda x: x + x.argmax(1, keepdim=True),
    "largest so far": lambda x: x.cummax(1)[0] + x.logcumsumexp(2),
    "sorted": lambda x: x.sort(1)[0] + x.topk(2, 2)[0].sum(2, keepdim=True),
    "which of windows": lambda x: x + F.max_pool2d(x, 3, 1, 1, return_indices=True)[1],
    "maxima of cells": lambda x: F.adaptive_max_pool2d(x, (3, 4)),
    "means of cells": lambda x: F.adaptive_avg_pool2d(x, (5, 3)),
    "extremes": lambda x: x.aminmax(dim=1, keepdim=True)[1] - x.amin((0, 2), keepdim=True),
    "norms": lambda x: F.normalize(x, dim=1) + F.local_response_norm(x, 3),
    "whole numbers": lambda x: x * (x * 3).round().int().bitwise_and(3).sum(1, keepdim=True),
    "products": lambda x: torch.einsum("nchw,ndhw->ncd", x, x)[:, :, :, None] * x[:, :, :1],
    "attention": lambda x: F.scaled_dot_product_attention(*x.chunk(2, 2)[:1] * 3),
    "sampled": lambda x: F.grid_sample(x, x.new_zeros(x.shape[0], 3, 4, 2), align_corners=False),
    "folded": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
    "written": lambda x: x.index_fill(2, torch.tensor([0]), 0.5).masked_fill(x > 1, 2),
    "rolled": lambda x: x.roll((1, 2), (1, 3)),
}


def network(names, x, weights):
    for name, weight in zip(names, weights, strict=False):
        x = F.conv2d(BLOCKS[name](x), weight, None, 1, 1)
    return x


def inputs(count):
    x = torch.randn(2, CHANNELS, 8, 7)
    return x, [torch.randn(CHANNELS, CHANNELS, 3, 3) / 9 for _ in range(count)]


def assert_as_near_to_exact(names, factor=2):
    x, weights = inputs(len(names) + 1)
    names = ["relu", *names]
    run = compiled(network, dynamic=False)

    def results(f, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in (x, *weights)]
        y = f(names, leaves[0], leaves[1:])
        return y.detach(), *torch.autograd.grad(y.square().mean(), leaves)

    exact = results(network, torch.float64)
    expected, actual = results(network, torch.float32), results(run, torch.float32)
    compare_with_exact(exact, expected, actual, factor)
    with torch.no_grad():  # another program
        expected, actual = network(names, x, weights), run(names, x, weights)
        compare_with_exact(exact[0], expected, actual, factor)


@pytest.mark.every(4)
@pytest.mark.parametrize("name", BLOCKS)
def test_between_convolutions(name):
    assert_as_near_to_exact([name])


# These jump: what is rounded otherwise may be far off in the end.
SMOOTH = sorted(set(BLOCKS) - {"a mask", "places", "which of windows", "whole numbers"})


@settings(max_examples=5, deadline=None, database=None)
@given(st.lists(st.sampled_from(SMOOTH), min_size=2, max_size=5))
def test_programs(names):
    torch._dynamo.reset()
    assert_as_near_to_exact(
        names, factor=20
    )  # norms of norms make much of a last place; a wrong one is far off


def turned_images(f, x):
    """How many tensors as large as an image the program of a function turns."""
    (built,) = xla_dynamo.explain(f)(x).executables
    turned = re.findall(r"stablehlo.transpose.* -> tensor<([\dx]+)xf32>", built.stablehlo)
    return sum(math.prod(map(int, sizes.split("x"))) > x.numel() // 2 for sizes in turned)


KEEPING = [
    "relu",
    "a number",
    "channels' own",
    "a mask",
    "maxima of windows",
    "padding",
    "larger",
    "smooth",
    "rows",
    "group norm",
    "layer norm",
    "batch norm",
    "squeeze and excite",
]


def from_tokens(tokens, kernel):
    """What heads of segmentation do: no call with images comes before the images."""
    n, places, channels = tokens.shape
    side = math.isqrt(places)
    x = (tokens * 2).transpose(1, 2).reshape(n, channels, side, side)
    return F.conv2d(torch.cat([x, F.interpolate(x.relu(), size=(side, side))], 1), kernel)


def test_images_made_of_tokens_are_not_turned():
    tokens, kernel = torch.randn(2, 36, CHANNELS), torch.randn(CHANNELS, 2 * CHANNELS, 1, 1)
    with torch.no_grad():
        assert turned_images(lambda x: from_tokens(x, kernel), tokens) <= 1  # the result
        assert_matches_eager(compiled(from_tokens), tokens, kernel)


@pytest.mark.parametrize("name", KEEPING)
def test_images_are_not_turned(name):
    x, weights = inputs(3)
    with torch.no_grad():
        plain = turned_images(lambda x: network(["relu"] * 3, x, weights), x)
        assert turned_images(lambda x: network(["relu", name, name], x, weights), x) <= plain


def test_sums_of_residual_blocks_are_made_once(monkeypatch):
    """Each kernel reads one image from a convolution and one from the block before."""
    known = libraries_of("cpu") - {ONEDNN_PLANS}  # which compute the sums on the way
    monkeypatch.setattr(targets, "libraries_of", lambda name: known)
    x, weights = inputs(4)

    def blocks(x):
        for weight in weights:
            x = (x + F.conv2d(x, weight, None, 1, 1)).relu()
        return x

    with torch.no_grad():
        (built,) = xla_dynamo.explain(blocks)(x).executables
    made = re.findall(
        r"([\w.]+) = f32\[2,[\d,]+\]\S* (?:custom-call|fusion|parameter)\(", built.hlo
    )
    kernels = re.findall(r" = f32\[2,[\d,]+\]\S* fusion\(([^)]*)\)", built.hlo)
    assert len(kernels) >= len(weights)
    for operands in kernels:
        assert sum(name in made for name in re.findall(r"%([\w.]+)", operands)) <= 2, operands
