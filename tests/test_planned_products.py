"""Matrix products by plans: cold, and of sizes below those that pay."""

import itertools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.comparison import compare, compare_with_exact
from tests.compiling import watched
from tests.packing import DTYPES, let_plan, needs_onednn, packed_calls
from tests.test_packed_epilogues import ACTIVATIONS
from xla_dynamo.errors import LoweringError
from xla_dynamo.kernels import planned_product, product_choices
from xla_dynamo.kernels.onednn_product import OneDNNProduct
from xla_dynamo.kernels.planned_product import PlannedProduct
from xla_dynamo.kernels.product_choices import COLUMNS, ROWS, XLA, Choice
from xla_dynamo.lowerings.passes.epilogues import PostOp

pytestmark = needs_onednn
TURNS = list(itertools.product([False, True], repeat=2))


@pytest.fixture(autouse=True, params=[0, 1 << 20], ids=["divided", "whole"])
def always(cold, monkeypatch, request):
    """However little there is to multiply, by several threads and by one."""
    let_plan(monkeypatch)
    monkeypatch.setattr(planned_product, "FEWEST_DIVIDED", request.param)
    torch.manual_seed(0)


def planned(f, *args, **options):
    """The result of a compiled function, and what its plans compute."""
    run, built = watched(f, fullgraph=True, **options)
    result = run(*args)
    return result, [call for event in built for call in packed_calls(event.program)]


def check(f, *args, calls=1, **options):
    """Compare with eager in this dtype and in float64; returns what the plans compute."""
    actual, found = planned(f, *args, **options)
    expected, exact = f(*args), f(*(a.double() for a in args))
    compare(expected, actual, values=False)
    compare_with_exact(exact, expected, actual)
    assert len(found) == calls
    return [call.form for call in found]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize("stack", [(), (1,), (3,), (2, 3), (2, 1, 2)])
def test_products(dtype, turns, stack):
    x, y = torch.randn(*stack, 5, 7, dtype=dtype), torch.randn(*stack, 7, 4, dtype=dtype)
    x, y = (t.mT.contiguous().mT if turn else t for t, turn in zip((x, y), turns, strict=True))
    check(torch.matmul, x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(33, 20, 50), (200, 64, 3), (2, 300, 100), (64, 1, 64)])
def test_sizes(dtype, sizes):
    rows, inner, columns = sizes
    check(F.linear, torch.randn(rows, inner, dtype=dtype), torch.randn(columns, inner, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [(), (1,), (4,), (1, 4), (5, 4)])
def test_biases(dtype, bias):
    added, x, y = (torch.randn(s, dtype=dtype) for s in (bias, (5, 7), (4, 7)))
    check(lambda a, x, y: torch.addmm(a, x, y.T), added, x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_in_the_plan(name, dtype):
    x, w, b = (torch.randn(s, dtype=dtype) for s in ((2, 9, 8), (16, 8), (16,)))
    (form,) = check(lambda x, w, b: ACTIVATIONS[name](F.linear(x, w, b)), x, w, b)
    assert [op.name for op in form.then] == [name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_special_numbers(name, dtype):
    """NaN, infinities and zeros of both signs, and what is beyond the range of an exponential."""
    special = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 100.0, -100.0, 1e-38, 5e37]
    x = torch.tensor(special, dtype=dtype)[:, None].repeat(1, 1)
    w = torch.ones(4, 1, dtype=dtype)

    def f(x, w):
        return ACTIVATIONS[name](F.linear(x, w))

    actual, found = planned(f, x, w)
    assert len(found) == 1
    torch.testing.assert_close(actual, f(x, w), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_is_in_the_plan(dtype):
    x, w, b = (torch.randn(s, dtype=dtype) for s in ((2, 9, 8), (8, 8), (8,)))
    (form,) = check(lambda x, w, b: (x + F.linear(x, w, b)).relu(), x, w, b)
    assert [op.name for op in form.then] == ["add", "relu"]
    (form,) = check(lambda x, w, b: x.mT + F.linear(x, w, b).mT, x, w, b)


def test_bounds_that_bfloat16_does_not_have():
    """They are rounded, as torch does."""
    x, w = torch.randn(9, 8).bfloat16(), torch.randn(8, 8).bfloat16()
    (form,) = check(lambda x, w: F.linear(x, w).clamp(-0.1, 0.3), x, w)
    assert form.then == (PostOp("clamp", (-0.10009765625, 0.30078125)),)


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("freeze", [False, True])
@torch.no_grad()
def test_changed_weights_are_noticed(dtype, freeze):
    model, x = Perceptron().to(dtype), torch.randn(2, 9, 8, dtype=dtype)
    run, built = watched(model, fullgraph=True, freeze=freeze)

    def right():  # eager rounds more often
        tolerance = 1e-5 if dtype is torch.float32 else 2e-2
        torch.testing.assert_close(run(x), model(x), rtol=tolerance, atol=tolerance)

    right()
    assert [bool(call.keys) for call in packed_calls(built[0].program)] == [freeze] * 2
    model.up.weight.mul_(-2)
    right()
    model.down.bias = nn.Parameter(torch.randn(8, dtype=dtype))
    right()
    model.load_state_dict(Perceptron().to(dtype).state_dict())
    right()
    if not freeze:
        model.up.weight.data.add_(1)  # which nobody counts
        right()
    assert len(built) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients(dtype):
    model, x = Perceptron().to(dtype), torch.randn(2, 9, 8, dtype=dtype)
    run, built = watched(model, fullgraph=True)
    run(x).sum().backward()
    actual = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    rtol = 1e-4 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(actual, [p.grad for p in model.parameters()], rtol=rtol, atol=rtol)
    assert sum(len(packed_calls(event.program)) for event in built) == 5


def test_products_in_a_loop_are_xlas():
    """The body of a loop has no handles."""
    from torch._higher_order_ops.scan import scan

    def f(x, ws):
        return scan(lambda h, w: (torch.tanh(h @ w), h.sum()), x, ws)[0]

    x, ws = torch.randn(4, 8), torch.randn(3, 8, 8)
    actual, found = planned(f, x, ws)
    torch.testing.assert_close(actual, f(x, ws))
    assert not found


def test_a_program_with_frozen_and_plain_products():
    model, x = Perceptron(), torch.randn(9, 8)
    with torch.no_grad():
        actual, found = planned(lambda x: model(x) @ x.T, x, freeze=True)
        torch.testing.assert_close(actual, model(x) @ x.T)
    assert sorted(bool(call.keys) for call in found) == [False, True, True]


def test_threads():
    model = Perceptron()
    inputs = [torch.randn(9, 8) for _ in range(6)]
    with torch.no_grad():
        expected = [model(x) for x in inputs]
        run = torch.compile(model, backend="openxla")
        run(inputs[0])
    wrong = []

    def work(x, result):
        with torch.no_grad():
            wrong.extend(not torch.allclose(run(x), result, atol=1e-5) for _ in range(200))

    threads = [threading.Thread(target=work, args=a) for a in zip(inputs, expected, strict=True)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert wrong == [False] * 1200


def test_a_clamp_is_the_last():
    product = OneDNNProduct((), 4, 4, 4, False, False, (torch.float32,) * 2, False)
    with pytest.raises(LoweringError, match="followed by others"):
        PlannedProduct(product, (PostOp("relu"), PostOp("add")))


def test_small_products_are_left_to_xla(monkeypatch):
    monkeypatch.undo()
    assert not planned(torch.mm, torch.randn(8, 8), torch.randn(8, 8))[1]


def test_of_few_rows_weights_are_not_packed(monkeypatch):
    by_rows = lambda sizes: Choice(COLUMNS, ROWS if sizes.rows > 4 else XLA)  # noqa: E731
    monkeypatch.setattr(product_choices, "shipped", by_rows)
    model = nn.Linear(8, 8)
    with torch.no_grad():
        found = [planned(model, torch.randn(rows, 8), freeze=True)[1] for rows in (1, 9)]
    assert [[bool(call.keys) for call in calls] for calls in found] == [[False], [True]]
