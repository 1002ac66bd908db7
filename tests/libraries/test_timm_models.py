"""timm's models for its own tests: as there, each has a gradient for each parameter, and features.

The suite of timm does so in eager, and compiles for Inductor.
"""

import copy

import pytest
import timm
import torch

from bench.models import randomize_constants
from tests.comparison import compare, compare_with_exact
from tests.compiling import compiled

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
each_model = pytest.mark.parametrize("name", timm.list_models("test_*"))


def build(name, **settings):
    model = timm.create_model(name, pretrained=False, **settings)
    randomize_constants(model, 0)
    return model


def images_for(name):
    return torch.randn(2, *timm.get_pretrained_cfg(name).input_size)


@pytest.mark.every(16)
@each_model
def test_gradients(name, traces):
    model = build(name).train()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()  # of two images, statistics are chaotic
        elif isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    twin = copy.deepcopy(model)
    images = images_for(name)
    expected, actual = model(images), compiled(twin)(images)
    torch.testing.assert_close(actual, expected, **CLOSE)
    weights = torch.randn_like(expected)
    for result in (expected, actual):
        (result * weights).sum().backward()
    for (parameter, wanted), found in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert wanted.grad is not None, parameter
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-4, atol=1e-4)
    assert traces() == 1


@pytest.mark.every(8)
@each_model
@torch.no_grad()
def test_features(name, traces):
    """What a detector takes: an image of each stage, as near to the exact one as eager's."""
    model = build(name, features_only=True).eval()
    images = images_for(name)
    features = model(images)
    assert len(features) > 1
    actual = compiled(model)(images)
    compare(features, actual, values=False)
    compare_with_exact(copy.deepcopy(model).double()(images.double()), features, actual)
    assert traces() == 1
