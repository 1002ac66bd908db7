"""`scan`, `map` and `associative_scan`: values and gradients of eager's, as one program."""

import pytest
import torch
from torch._higher_order_ops import associative_scan, cond, scan
from torch._higher_order_ops import map as map_

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled_whole, leaf


def test_gradient_of_a_scan_that_drops():
    def step(carry, x):
        y = torch.nn.functional.dropout(x, 0.5)
        return carry + y, y * 1

    x = torch.ones(20, 50, requires_grad=True)
    _, y = compiled_whole(lambda x: scan(step, torch.zeros(50), x))(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert y.unique(dim=0).shape[0] == 20


@pytest.mark.every(3)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("make", [torch.randn, leaf])
def test_scan(length, reverse, make):
    weight = make(3, 3)

    def step(carry, x):
        carry = torch.tanh(carry @ weight + x)
        return carry, {"sum": carry.sum(-1), "twice": carry * 2}

    f = lambda init, xs: scan(step, init, xs, reverse=reverse)  # noqa: E731
    assert_matches_eager(compiled_whole(f), make(2, 3), make(length, 2, 3))


def test_scan_along_another_dimension():
    def step(carry, x):
        return {"a": carry["a"] + x["u"], "n": carry["n"] + 1}, carry["a"] * x["v"]

    init = {"a": torch.zeros(4), "n": torch.tensor(0)}
    xs = {"u": torch.randn(4, 5), "v": torch.randn(4, 5)}
    assert_matches_eager(compiled_whole(lambda init, xs: scan(step, init, xs, dim=1)), init, xs)


def test_scan_of_dynamic_length():
    f = lambda xs: scan(lambda c, x: (c + x, c * x), torch.zeros(3), xs)  # noqa: E731
    g = compiled_whole(f, dynamic=True)
    for n in (2, 6, 3):
        xs = torch.randn(n, 3)
        assert_matches_eager(g, xs)


@pytest.mark.parametrize("make", [torch.randn, leaf])
def test_map(make):
    f = lambda xs, y: map_(lambda x, y: (x.sin() @ y, x.sum()), xs, y)  # noqa: E731
    assert_matches_eager(compiled_whole(f), make(4, 2, 3), make(3, 5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_map_of_dtypes(dtype):
    assert_matches_eager(
        compiled_whole(lambda xs: map_(lambda x: x | True if dtype is torch.bool else x * 3, xs)),
        torch.ones(3, 2).to(dtype),
    )


@pytest.mark.parametrize("make", [torch.randn, leaf])
def test_associative_scan(make):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    f = lambda a, b: associative_scan(combine, (a, b), 0, combine_mode="generic")  # noqa: E731
    assert_matches_eager(compiled_whole(f), make(6, 2), make(6, 2))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(3) * 0.3)

    def forward(self, xs):
        def step(carry, x):
            carry = torch.tanh(carry @ self.weight + x)
            return carry, carry * 2

        carry, ys = scan(step, torch.zeros(2, 3), xs)
        return cond(carry.sum() > 0, torch.sin, torch.cos, (ys,))


def test_train_step():
    xs, losses = torch.randn(5, 2, 3), []
    for take in ("eager", "train_step"):
        model = Recurrent()
        optimizer = torch.optim.AdamW(model.parameters())
        step = xla_dynamo.train_step(
            model,
            lambda model, xs: (model(xs) ** 2).mean(),
            optimizer,
            options={"fallback": "error"},
        )

        def eager(xs, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(xs) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = eager if take == "eager" else step
        losses.append([run(xs) for _ in range(5)])
    torch.testing.assert_close(*losses)
