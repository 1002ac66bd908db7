"""Float64 tensors of no dimension change in place, as eager's do."""

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.compiling import compiled
from xla_dynamo import openxla


def number(value):
    return torch.tensor(value, dtype=torch.float64)


def count(total, x, k):
    total.add_(x.sum())


def scale(total, x, k):
    total.mul_(k).add_(1)
    x.mul_(k * 2)


def fill(total, x, k):
    total.copy_(x[0])
    return total * k


def read_and_write(total, x, k):
    before = total + 0
    total.sub_(x[1], alpha=k)
    return before, total.sin()


def run(f, wrap):
    total, x, f = number(1.5), torch.arange(3, dtype=torch.float64) + 1, wrap(f)
    results = [f(total, x, k) for k in (0.5, 2.0, 3.5, -1.0)]
    return results, total, x


@pytest.mark.parametrize("f", [count, scale, fill, read_and_write], ids=lambda f: f.__name__)
def test_in_place(f):
    actual = run(f, compiled)
    expected = run(f, lambda f: f)
    for a, e in zip(pytree.tree_leaves(actual), pytree.tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, e)


def test_numbers_of_later_graphs_are_still_tensors():
    """What was learnt for one graph is not held against the next: no executable a number."""
    compiled(count)(number(1.0), torch.ones(2), 1.0)
    seen = []

    def backend(gm, inputs):
        seen.append(gm)
        return openxla(gm, inputs)

    f = torch.compile(lambda x, k: x * k, backend=backend)
    for k in (0.5, 1.5, 2.5, 3.5):
        torch.testing.assert_close(f(torch.ones(3), k), torch.full((3,), k))
    assert len(seen) == 2  # one for the first number, one for all


def test_parameters_of_an_optimizer():
    def steps(wrap):
        weight = torch.nn.Parameter(number(1.0))
        optimizer = torch.optim.Adam([weight], lr=0.1)
        step = wrap(optimizer.step)
        for k in range(4):
            weight.grad = number(k - 1.3)
            step()
        return weight

    actual = steps(lambda f: compiled(f, fullgraph=False))
    torch.testing.assert_close(actual, steps(lambda f: f), rtol=1e-6, atol=1e-6)
