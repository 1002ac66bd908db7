"""The ten things that must work, in ten seconds: run this first."""

import torch
import torch.nn.functional as F

from tests.compiling import assert_matches_eager, compiled


def test_addition():
    assert_matches_eager(compiled(lambda x, y: x + y), torch.randn(3, 4), torch.randn(4))


def test_matrix_product():
    assert_matches_eager(compiled(torch.matmul), torch.randn(3, 4), torch.randn(4, 5))


def test_reduction():
    assert_matches_eager(compiled(lambda x: (x.sum(1), x.amax())), torch.randn(3, 4))


def test_integers():
    assert_matches_eager(compiled(lambda x: x * 3 // 2 - 1), torch.arange(-5, 5))


def test_view_and_slice():
    assert_matches_eager(compiled(lambda x: x.view(2, 6)[:, 1::2] + 1), torch.randn(3, 4))


def test_linear_layer():
    layer = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    with torch.no_grad():
        assert_matches_eager(compiled(layer), x)


def test_convolution():
    assert_matches_eager(compiled(F.conv2d), torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3))


def test_attention():
    q, k, v = torch.randn(3, 1, 2, 5, 8)
    assert_matches_eager(compiled(F.scaled_dot_product_attention), q, k, v)


def test_in_place():
    def f(x):
        x.add_(1)
        return x * 2

    x = torch.ones(3)
    y = compiled(f)(x)
    assert x.tolist() == [2, 2, 2]
    assert y.tolist() == [4, 4, 4]


def test_gradient():
    x = torch.randn(3, requires_grad=True)
    compiled(lambda x: (x * x).sum())(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
