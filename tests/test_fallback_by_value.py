"""Sizes and numbers that depend on values, in a graph that is compiled in parts."""

import pytest
import torch

from tests.compiling import assert_matches_eager, compiled_anew
from xla_dynamo import ExecutionError


def test_sizes_that_depend_on_values():
    def f(x):
        y = torch.relu(x) * 2
        places = y.nonzero()
        return y[places[:, 0]].sum(0) * y.sum().item(), y[y > 1] + 1, places

    run = compiled_anew(f)
    for x in (torch.randn(6, 4), torch.randn(6, 4), -torch.ones(6, 4), torch.ones(6, 4)):
        assert_matches_eager(run, x)


def test_an_assertion_about_a_size():
    def f(x):
        n = (x > 0).sum().item()
        torch._check(n > 2, lambda: "too few")
        return x[:n] * 2

    run = compiled_anew(f)
    x = torch.tensor([1.0, 2.0, 3.0, -1.0])
    assert_matches_eager(run, x)
    with pytest.raises(RuntimeError, match=r"too few|u0"):
        run(-x)


def test_a_number_read_from_a_tensor():
    def f(x, n):
        return x * n.item() + x.shape[0], x.narrow(0, n.item(), 2)

    run = compiled_anew(f)
    for n in (0, 2, 1):
        args = torch.arange(4.0), torch.tensor(n)
        assert_matches_eager(run, *args)


def test_a_mask_used_twice():
    assert_matches_eager(
        compiled_anew(lambda x, m: (x[m], (x * 2)[m])), torch.randn(8), torch.randn(8) > 0, calls=2
    )
    assert_matches_eager(
        compiled_anew(lambda x, m: (x * 2)[m] + (x + 1)[m]),
        torch.randn(8),
        torch.randn(8) > 0,
        calls=2,
    )
    assert_matches_eager(
        compiled_anew(lambda x, m: (m.nonzero(), x[m])), torch.randn(8), torch.randn(8) > 0, calls=2
    )


def test_a_masked_loss():
    layer, x, target = torch.nn.Linear(8, 5), torch.randn(10, 8), torch.randint(0, 5, (10,))

    def loss(x, mask):
        return torch.nn.functional.cross_entropy(layer(x)[mask], target[mask])

    mask = torch.arange(10) % 3 > 0
    actual = torch.autograd.grad(compiled_anew(loss)(x, mask), list(layer.parameters()))
    expected = torch.autograd.grad(loss(x, mask), list(layer.parameters()))
    torch.testing.assert_close(actual, expected)


def test_numbers_that_are_equal_and_not_the_same():
    run = compiled_anew(lambda n: 1 / torch.full((2,), n.item()))
    for n in (0.0, -0.0, float("nan"), 2.0):
        expected = 1 / torch.full((2,), n)
        torch.testing.assert_close(run(torch.tensor(n)), expected, equal_nan=True)


def test_out_of_memory_after_a_cut():
    run = compiled_anew(lambda x: (lambda y: (y[:, None] * y).cumsum(0).exp().sum())(x[x > 0]))
    run(torch.randn(8))
    with pytest.raises(ExecutionError, match=r"(?s)[Mm]emory.*test_fallback_by_value"):
        run(torch.ones(900_000))
