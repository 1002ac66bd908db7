"""Gradients of convolutions whose output_padding is as large as torch allows."""

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_output_padding_beyond_the_stride(dims):
    torch.manual_seed(0)
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    x = torch.randn(2, 2, *[4] * dims, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(2, 3, *[3] * dims, dtype=torch.float64, requires_grad=True)

    def f(x, weight):
        return convolve(x, weight, stride=1, padding=1, dilation=3, output_padding=2)

    expected, actual = f(x, weight), torch.compile(f, backend="openxla", fullgraph=True)(x, weight)
    torch.testing.assert_close(actual, expected)
    tangent = torch.randn_like(expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual, (x, weight), tangent),
        torch.autograd.grad(expected, (x, weight), tangent),
    )
