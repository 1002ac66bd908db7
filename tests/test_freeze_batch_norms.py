"""Frozen batch norms are folded into the convolutions before them."""

import pytest
import torch
from torch import nn

import xla_dynamo
from tests.freezing import check_inference, frozen

CONVOLUTIONS = {
    "plain": (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)),
    "without a bias": (nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8)),
    "grouped": (nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)),
    "in one dimension": (nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8)),
    "in three": (nn.Conv3d(3, 8, 2), nn.BatchNorm3d(8)),
    "transposed": (nn.ConvTranspose2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)),
    "transposed, grouped": (nn.ConvTranspose2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
    "not affine": (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)),
    "of batch statistics": (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, track_running_stats=False),
    ),
}


def normalized(name):
    conv, norm = CONVOLUTIONS[name]
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2)
    channels = conv.in_channels
    image = torch.randn(2, channels, *[7] * (conv.weight.ndim - 2))
    return nn.Sequential(conv, norm, nn.ReLU()).eval(), image


def norms_in(model, image, **context):
    """How many batch norms are left in what was compiled."""
    explained = xla_dynamo.explain(model, options={"freeze": True})
    with torch.no_grad():
        report = explained(image)
    return sum("batch_norm" in o.name for graph in report.graphs for o in graph.operators)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_batch_norms_are_folded(name):
    model, image = normalized(name)
    check_inference(frozen(model), image, rtol=1e-4, atol=1e-5)
    left = name in ("of batch statistics", "transposed, grouped")
    assert norms_in(model, image) == left


@pytest.mark.parametrize("name", ["plain", "without a bias"])
def test_batch_norms_are_folded_under_autocast(name):
    model, image = normalized(name)
    exact = model.double()(image.double())
    model.float()
    run = frozen(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, eager = run(image), model(image)
    assert found.dtype is eager.dtype
    assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max()


def test_a_convolution_that_others_read_is_not_folded():
    model, image = normalized("plain")
    conv, norm, _ = model

    def f(x):
        y = conv(x)
        return norm(y) + y

    check_inference(frozen(f), image, rtol=1e-4, atol=1e-5)
    assert norms_in(f, image) == 1


def test_running_statistics_that_change_are_noticed():
    model, image = normalized("plain")
    run = frozen(model)
    check_inference(run, image, rtol=1e-4, atol=1e-5)
    model.train()(image)  # in eager torch
    model.eval()
    check_inference(run, image, rtol=1e-4, atol=1e-5)


def test_many_running_statistics_that_change_are_noticed():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5000), torch.nn.BatchNorm1d(5000)).eval()
    run, x = frozen(model), torch.randn(8, 4)
    check_inference(run, x, rtol=1e-4, atol=1e-5)
    model.train()(x * 3 + 1)
    model.eval()
    check_inference(run, x, rtol=1e-4, atol=1e-5)


def test_not_a_number_comes_through_a_folded_batch_norm():
    model, image = normalized("plain")
    image[0, 0, 0, 0] = torch.nan
    image[1, 0, 3, 3] = torch.inf
    check_inference(frozen(model), image, rtol=1e-4, atol=1e-5, equal_nan=True)
