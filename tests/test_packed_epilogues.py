"""What follows a convolution with a packed weight: inside its call, with eager's numbers.

Cold, and of sizes below those that oneDNN is used for.
"""

import pytest
import torch
from torch import nn

from tests.freezing import check_inference, frozen
from tests.packing import DTYPES, Block, always, assert_packed, convolution, forms, needs_onednn

__all__ = ["always"]  # a fixture
pytestmark = needs_onednn

ACTIVATIONS = {
    "clamp": nn.ReLU6(),
    "gelu_erf": nn.GELU(),
    "gelu_tanh": nn.GELU("tanh"),
    "hardswish": nn.Hardswish(),
    "leaky_relu": nn.LeakyReLU(0.2),
    "relu": nn.ReLU(),
    "swish": nn.SiLU(),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_in_the_call(name, dtype):
    model = nn.Sequential(convolution(), ACTIVATIONS[name]).eval().to(dtype)
    x = torch.randn(2, 8, 6, 6, dtype=dtype) * 3
    assert_packed(model, x, 1)
    assert [then[0][0] for then in forms(model, x)] == [name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_special_numbers(name, groups, dtype):
    """NaN, infinities and zeros of both signs, and what is beyond the range of an exponential."""
    conv = convolution(kernel_size=1, groups=groups, bias=False)
    with torch.no_grad():
        weight = torch.eye(8)[:, :, None, None] if groups == 1 else torch.ones(8, 1, 1, 1)
        conv.weight.copy_(weight)
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 100.0, -100.0, 1e-40, 5e37]
    x = torch.zeros(1, 8, 3, 3)
    x[0, 0] = torch.tensor(special).view(3, 3)
    model = nn.Sequential(conv, ACTIVATIONS[name]).to(dtype)
    check_inference(frozen(model), x.to(dtype), eager=model, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("last", [True, False])
def test_a_sum_is_in_the_call(last, dtype):
    model, x = Block(last).to(dtype), torch.randn(2, 8, 6, 6, dtype=dtype)
    assert_packed(model, x, 2)
    assert forms(model, x) == [[["relu"]], [["add"], ["relu"]] if last else [["add"]]]


def test_what_clamps_comes_last():
    """It is computed again where there is NaN, with nothing behind it."""
    conv = convolution(padding=1)
    x = torch.randn(2, 8, 6, 6)
    assert forms(lambda x: conv(x).relu() + x, x) == [[["relu"]]]


def test_bounds_that_are_no_numbers():
    conv = convolution(padding=1)
    x = torch.randn(2, 8, 6, 6)
    assert forms(lambda x: conv(x).clamp(-0.5, 0.25), x) == [[["clamp", -0.5, 0.25]]]
    run = frozen(lambda x: conv(x).clamp(float("nan"), 1.0))
    assert run(x).isnan().all()
    with torch.no_grad():
        assert forms(lambda x: conv(x).clamp(0.5, -0.5), x) == [[]]


def test_a_sum_between_activations():
    conv = convolution(padding=1)

    def model(x):
        return torch.nn.functional.silu(torch.nn.functional.hardswish(conv(x)) + x)

    x = torch.randn(2, 8, 6, 6)
    assert forms(model, x) == [[["hardswish"], ["add"], ["swish"]]]


def test_what_is_read_elsewhere_is_not_in_the_call():
    conv = convolution(padding=1)

    def model(x):
        y = conv(x)
        z = torch.sigmoid(y)
        return y * z + z

    assert forms(model, torch.randn(2, 8, 6, 6)) == [[]]


def test_a_sum_with_what_is_spread_is_not_in_the_call():
    conv = convolution(padding=1)
    x = torch.randn(2, 8, 6, 6)
    assert forms(lambda x: conv(x) + 1, x) == [[]]
    assert forms(lambda x: conv(x) + x[:, :1], x) == [[]]


def test_a_sum_of_two_convolutions():
    one, other = convolution(), convolution()

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = one, other

        def forward(self, x):
            return (self.one(x) + self.other(x)).relu()

    assert_packed(Both(), torch.randn(2, 8, 6, 6), 2)


def test_a_result_that_is_read_twice():
    conv = convolution(padding=1)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv

        def forward(self, x):
            y = self.conv(x)
            return y.relu() + y * 2 + (y + y).relu()

    assert_packed(Twice(), torch.randn(2, 8, 6, 6), 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_special_numbers(value):
    model = nn.Sequential(convolution(kernel_size=1), nn.ReLU())
    x = torch.randn(2, 8, 6, 6)
    x[0, 0, 0, 0] = value
    check_inference(frozen(model), x, eager=model, equal_nan=True)


def test_values_that_are_computed_alike():
    """Their keys are the same: the biases of two statistics with the same numbers."""
    first, second = convolution(bias=False), convolution(bias=False)
    norms = nn.BatchNorm2d(8).eval(), nn.BatchNorm2d(8).eval()
    assert_packed(nn.Sequential(first, norms[0], second, norms[1]), torch.randn(2, 8, 9, 9), 2)
