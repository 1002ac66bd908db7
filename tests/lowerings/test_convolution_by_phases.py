"""Transposed convolutions, and gradients of strided ones, as several without zeros in the image."""

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.lowerings.cpu import convolution_by_phases

# Channels of the image and of the result (a group), spatial sizes, window, stride, padding,
# output padding, groups.
CASES = {
    "DCGAN's": (4, 6, [5, 5], [4, 4], [2, 2], [1, 1], [0, 0], 1),
    "odd window": (3, 2, [5, 4], [3, 5], [2, 2], [1, 2], [1, 1], 1),
    "window below the stride": (2, 3, [4, 3], [2, 1], [3, 3], [0, 0], [0, 2], 1),
    "one stride of two": (2, 3, [4, 6], [3, 3], [1, 3], [2, 0], [0, 0], 1),
    "groups": (4, 3, [5, 5], [4, 3], [2, 2], [0, 1], [0, 1], 2),
    "one dimension": (2, 3, [7], [5], [3], [2], [2], 1),
    "three dimensions": (2, 2, [3, 4, 2], [3, 2, 4], [2, 2, 2], [1, 0, 1], [0, 0, 1], 1),
    "a phase that begins within the image": (8, 8, [9, 9], [3, 3], [3, 3], [1, 1], [2, 2], 1),
    "a phase that begins behind the image": (4, 2, [2, 5], [4, 3], [2, 3], [3, 1], [1, 2], 1),
    "padding that takes all but one": (2, 2, [3, 2], [3, 3], [2, 2], [2, 1], [0, 0], 1),
}


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """However small the convolution is."""
    monkeypatch.setattr(convolution_by_phases, "_FEWEST", 1)


def transposed(case):
    inner, outer, image, window, stride, padding, more, groups = CASES[case]
    x = torch.randn(2, inner, *image, requires_grad=True)
    weight = torch.randn(inner, outer, *window, requires_grad=True)
    bias = torch.randn(outer * groups, requires_grad=True)
    f = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(image) - 1]
    return lambda *inputs: f(*inputs, stride, padding, more, groups), (x, weight, bias)


@pytest.mark.parametrize("case", CASES)
def test_transposed(case):
    f, inputs = transposed(case)
    run = compiled(f, dynamic=False)
    assert_matches_eager(run, *inputs, tangents=[None], rtol=1e-4, atol=1e-5)
    assert_matches_eager(run, *inputs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("stride", [2, (1, 3)])
@pytest.mark.parametrize("window", [1, 3])
def test_gradients_of_strided(stride, window, dtype):
    x = torch.randn(2, 4, 9, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(3, 4, window, window, dtype=dtype, requires_grad=True)

    def f(x, weight):
        return F.conv2d(x, weight, None, stride, window // 2)

    half = dtype is torch.bfloat16
    close = {"rtol": 2e-2, "atol": 5e-2} if half else {"rtol": 1e-4, "atol": 1e-4}
    assert_matches_eager(compiled(f, dynamic=False), x, weight, **close)


def test_no_zeros_are_left_in_the_image(monkeypatch):
    f, inputs = transposed("DCGAN's")
    with torch.no_grad():
        (built,) = xla_dynamo.explain(f)(*inputs).executables
        assert "lhs_dilate = [2, 2]" not in built.stablehlo
        assert built.stablehlo.count("stablehlo.convolution") == 4
        monkeypatch.undo()  # it is too small to be worth it
        (built,) = xla_dynamo.explain(f)(*inputs).executables
        assert "lhs_dilate = [2, 2]" in built.stablehlo
