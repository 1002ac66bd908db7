"""Barriers between two operators: what eager rounds, or has as infinite, 0 or NaN, so has XLA."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.compiling import assert_matches_eager, compiled

PRODUCTS = {
    "top one": lambda a: ((p := a * 0.1) - p.amax(-1, keepdim=True) == 0).sum(-1),
    "root": lambda a: ((p := a * 0.1).amax(-1, keepdim=True) - p).sqrt(),
    "squares": lambda a: ((p := a * a).amax(-1, keepdim=True) - p).sqrt(),
    "from the least": lambda a: ((x := a * 3.3) - x.amin(-1, keepdim=True)).sqrt(),
    "sorted": lambda a: ((x := a * 3.3).sort()[0][:, :1] - x).relu().count_nonzero(),
    "expanded": lambda a: (p := a.square() * 0.3)[None] - p[:, None],
    "two inputs": lambda a: torch.sqrt(a * a - (b := a.clone()) * b),
    "two sums": lambda a: (a * a + a, a * a - a * 0.7),
    "negated": lambda a: -(a * 0.7) + (a * 0.7),
    "normalized": lambda a: ((p := F.layer_norm(a, (100,))).amax() - p).sqrt(),
    "outer": lambda a: ((p := a[:, :, None] @ a[:, None, :]).amax() - p).sqrt(),
    "linear": lambda a: ((p := F.linear(a[:, :1], a[:5, :1])).amax() - p).sqrt(),
    "gathered": lambda a: (a * 0.7)[:, [3, 3, 5]] - a[:, [3, 3, 5]] * 0.7,
    "gathered by a tensor": lambda a: (a * 0.7)[i := a[:, 0].long().abs()] - a[i] * 0.7,
    "chosen": lambda a: torch.where(a > 0, a * 0.7, 0.0) - a.relu() * 0.7,
    "of two": lambda a: torch.cat([a[:3] * 3.3, a[3:]]) - a[:, torch.arange(99, -1, -1)],
    "joined": lambda a: torch.cat([a * 0.7, a]) - torch.cat([a * 0.7, a]) * a.new_ones(100),
    "padded": lambda a: F.pad(a * 0.7, (0, 1)) - F.pad(a, (0, 1)) * 0.7,
    "a part": lambda a: (a * 0.7)[2:].flip(0) - a[2:].flip(0) * 0.7,
    "turned": lambda a: (a * 0.7).t() - (a.t() * 0.7),
    "sorted by a function": lambda a: (a * 0.7).sort()[0] - a.sort()[0] * 0.7,
    "the largest": lambda a: (a * 0.7).topk(3)[0] - a.topk(3)[0] * 0.7,
    "power": lambda a: ((p := a.pow(torch.tensor(2.0))).amax() - p).sqrt(),
    "zeros and a product": lambda a: (
        (p := torch.addmm(a.new_zeros(100), a[:, :1], a[:1])).amax() - p
    ).sqrt(),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PRODUCTS)
def test_differences_of_products_are_those_of_eager(name, dtype):
    torch.manual_seed(0)
    a = torch.randn(64, 100, dtype=dtype)
    assert_matches_eager(compiled(PRODUCTS[name]), a, rtol=1e-6, atol=0)


def test_in_a_branch_and_in_a_loop():
    def below_top(a):
        return (p := a * 0.1).amax() - p

    def branch(a):
        return torch.cond(a.sum() > 1e9, torch.clone, below_top, (a,))

    def loop(a):
        first = (torch.tensor(0), a)
        return torch.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, below_top(a)), first)[1]

    a = torch.randn(64, 100)
    for f in (branch, loop):
        assert_matches_eager(compiled(f), a, rtol=0, atol=0)


def test_products_are_rounded_before_a_reduction():
    def sums(x, y):
        products = torch.stack([x * x, y], -1)
        return products.sum(-1), products.mean(-1), products.cumsum(-1)

    x, y = torch.tensor([1e30, 0.7, 3.3]), torch.tensor([-math.inf, -0.49, -10.89])
    assert_matches_eager(compiled(sums), x, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("trips", [1, 3])
def test_into_a_loop_and_out_of_it(trips):
    def f(x):
        p = x * 0.1
        first = (torch.tensor(0), x + 1e8, p)
        _, sums, differences = torch.while_loop(
            lambda i, *_: i < trips,
            lambda i, s, p: (i + 1, s - 1e8, (p.amax() - p) * 0.1),
            first,
        )
        return sums + 1e8 - 1e8, differences.amax() - differences

    x = torch.arange(-50.0, 50)
    assert_matches_eager(compiled(f), x, rtol=0, atol=0)


def test_out_of_a_branch_that_is_known():
    def f(x):
        yes = torch.ones(()) > 0
        s = torch.cond(yes, lambda x: x + 1e8, lambda x: x * 2, (x,))
        p = torch.cond(yes, lambda x: x * 0.1, lambda x: x + 2, (x,))
        return s - 1e8, p.amax() - p

    x = torch.arange(-50.0, 50)
    assert_matches_eager(compiled(f), x, rtol=0, atol=0)


@pytest.mark.parametrize("freeze", [False, True])
def test_with_parameters(freeze):
    linear = torch.nn.Linear(100, 100)

    def f(x):
        p = linear.weight * 0.1
        return (p.amax() - p).sqrt() + (q := x * 0.3).amax() - q

    x = torch.randn(100, 100)
    with torch.no_grad():
        assert_matches_eager(compiled(f, freeze=freeze), x, rtol=1e-6, atol=0)


BIG, SMALL = 1e30, 1e-30  # the product of two big ones is infinite, of two small ones 0
PAIRS = {
    "added and taken": lambda x, y: (x + 1e8) - 1e8,
    "taken and added": lambda x, y: (x - 1e8) + 1e8,
    "taken from two": lambda x, y: (1e8 - x) - 1e8,
    "turned in between": lambda x, y: (x + 1e8).t() - 1e8,
    "multiplied twice": lambda x, y: (x * BIG) * SMALL,
    "multiplied by a scalar": lambda x, y: (x * SMALL) * y[0, 7],
    "scalars": lambda x, y: (x[7, 0] * BIG) * y[0, 5],
    "a common factor": lambda x, y: x.clamp(-3e38, 3e38) * 0.5 + y.clamp(-3e38, 3e38) * 0.5,
    "a common factor of half types": lambda x, y: x.clamp(-6e4, 6e4).half() * 0.5 + 3e4,
    "divided twice": lambda x, y: (x / y) / x,
    "by a quotient": lambda x, y: x / (x / y),
    "quotients": lambda x, y: (x / y) / (y / x),
    "by numbers": lambda x, y: (x / BIG) / SMALL,
    "by a power": lambda x, y: x / y**3.5,
    "by an exponential": lambda x, y: x / y.exp(),
    "exponentials multiplied": lambda x, y: (x.exp() * (-x).exp(), x.exp().t() * y.exp()),
    "exponentials": lambda x, y: x.exp() / y.exp(),
    "power of an exponential": lambda x, y: x.exp() ** y,
    "log of an exponential": lambda x, y: x.exp().log(),
    "log2 of an exponential": lambda x, y: x.exp2().log2(),
    "log of a power": lambda x, y: (x**y).log(),
    "log of a reciprocal root": lambda x, y: x.rsqrt().log(),
    "root of a square": lambda x, y: (x * x).sqrt(),
    "power of a square": lambda x, y: (x**2) ** 0.5,
    "root of a sum of one": lambda x, y: x.square().sum(1).sqrt(),
    "reciprocal root": lambda x, y: (x**-2).rsqrt(),
    "root of a reciprocal": lambda x, y: (1 / x.abs()).rsqrt(),
    "area of a difference": lambda x, y: (x - 1e7).acosh(),
    "complex": lambda x, y: torch.view_as_real((torch.complex(x, x) * BIG) * SMALL),
    "complex sum": lambda x, y: torch.view_as_real((torch.complex(x, x) + 1e8) - 1e8),
    "no less than zero": lambda x, y: (x.abs() >= 0, x * x >= 0, x.exp() >= 0),
}


@pytest.mark.parametrize("name", PAIRS)
def test_two_operators_are_not_made_one(name):
    special = [0, 1, -1, 2.5, -3.3, SMALL, -SMALL, BIG, -BIG, 1e7, 200, -200, 1e37, -0.0, math.inf]
    x = torch.tensor([*special, -math.inf, math.nan])
    x, y = x[:, None], x[None].clone()
    close = {"rtol": 1e-5, "atol": 1e-37, "equal_nan": True}
    assert_matches_eager(compiled(PAIRS[name]), x, y, **close)


def test_sums_rounded_in_bfloat16():
    x = torch.arange(-300, 300) / 7
    for f in (lambda x: (x + 1e3) - 1e3, lambda x: (x * 0.7) * 3.3):
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            assert_matches_eager(compiled(f), x.to(dtype), rtol=0, atol=0)
