"""`while_loop`: values and gradients of eager's, compiled as one program."""

import torch
from torch._higher_order_ops import while_loop

from tests.compiling import assert_matches_eager, compiled, compiled_whole, leaf
from tests.host_operators import host_sine
from xla_dynamo.runtime import executables, metrics


def test_a_loop_of_10000_iterations_is_one_executable(monkeypatch):
    def f(x):
        return while_loop(lambda i, x: i < 10_000, lambda i, x: (i + 1, x * 3 + i), (i0, x))

    executor, runs = executables.executor, []

    def watched(loaded):
        execute = executor(loaded)
        return lambda buffers: (runs.append(1), execute(buffers))[1]

    monkeypatch.setattr(executables, "executor", watched)
    i0 = torch.tensor(0)
    g = compiled_whole(f)
    metrics.clear_all()
    actual = g(torch.arange(8))
    assert metrics.counter_value("UncachedCompile") == 1
    assert len(runs) == 1
    torch.testing.assert_close(actual, f(torch.arange(8)))


def test_a_loop_that_runs_as_long_as_values_say():
    def f(x, limit):
        return while_loop(lambda x: x.sum() < limit, lambda x: (x * 1.5 + 0.1,), (x,))

    for limit in (-100.0, 5.0, 300.0):
        assert_matches_eager(compiled_whole(f), torch.rand(3, 2), torch.tensor(limit))


def test_loop_in_loop():
    def outer(i, x):
        _, y = while_loop(lambda j, y: j < i, lambda j, y: (j + 1, y + j), (torch.tensor(0), x))
        return i + 1, y * 0.5

    f = lambda x: while_loop(lambda i, x: i < 4, outer, (torch.tensor(0), x))  # noqa: E731
    assert_matches_eager(compiled_whole(f), torch.randn(3))


def test_gradient_of_a_loop():
    """Torch keeps every step's values: one program counts the steps, another keeps so many."""

    def f(x, w, limit):
        def body(i, x):
            return i + 1, x * w + i

        return while_loop(lambda i, x: x.sum() < limit, body, (torch.tensor(0), x))

    x, w = torch.rand(3, requires_grad=True), torch.full((3,), 1.5, requires_grad=True)
    for limit in (50.0, 500.0, 50.0):
        assert_matches_eager(compiled_whole(f), x, w, torch.tensor(limit))


def test_gradient_of_a_loop_compiles_once_for_a_number_of_steps():
    g = compiled_whole(lambda x, n: while_loop(lambda i, x: i < n, step, (n * 0, x))[1].sum())

    def step(i, x):
        return i + 1, x.sin()

    metrics.clear_all()
    counts = []
    for n in (7, 7, 8, 7):
        x = torch.rand(4, requires_grad=True)
        g(x, torch.tensor(n)).backward()
        expected = torch.autograd.grad(sines(x, n).sum(), x)[0]
        torch.testing.assert_close(x.grad, expected)
        counts.append(metrics.counter_value("UncachedCompile"))
    assert counts[0] == counts[1]
    assert counts[2] == counts[3]
    assert not [name for name in metrics.counter_names() if "while_loop" in name]


def sines(x, n):
    for _ in range(n):
        x = x.sin()
    return x


def test_gradient_of_a_loop_of_no_steps_and_of_many():
    f = lambda x, n: while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 0.999), (n * 0, x))  # noqa: E731
    assert_matches_eager(compiled_whole(f), leaf(3), torch.tensor(3000))
    x = leaf(3)
    # The gradient, in eager too, goes back through one step where there was none.
    assert torch.equal(compiled_whole(f)(x, torch.tensor(0))[1], x)


def test_gradient_of_a_loop_in_the_middle_of_a_graph():
    def f(x, w):
        h = (x @ w).tanh()

        def body(i, h, total):
            return i + 1, (h @ w).tanh(), total + h.sum(0)

        start = (torch.tensor(0), h, torch.zeros_like(h[0]))
        i, h, total = while_loop(lambda i, h, total: i < 4, body, start)
        return h.sin() + total, i * 2

    assert_matches_eager(compiled_whole(f), leaf(3, 3), leaf(3, 3))


def test_a_loop_in_whose_gradient_an_operator_has_no_rule():
    def f(x):
        body = lambda i, x: (i + 1, host_sine(x))  # noqa: E731
        return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1] * 2

    assert_matches_eager(compiled(f), leaf(3))


def test_a_loop_with_a_number_as_counter():
    f = lambda x: while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x + i), (0, x))  # noqa: E731
    assert_matches_eager(compiled(f), torch.randn(3))


def test_every_step_draws_numbers_of_its_own():
    def outer(i, total):
        def inner(j, total):
            return j + 1, torch.cat([total[1000:], torch.rand(1000, dtype=torch.float64)])

        return i + 1, while_loop(lambda j, t: j < 3, inner, (i * 0, total))[1]

    f = lambda i, x: while_loop(lambda i, x: i < 4, outer, (i, x))[1]  # noqa: E731
    g, start = compiled_whole(f), (torch.tensor(0), torch.zeros(12_000, dtype=torch.float64))
    first = g(*start)
    assert first.unique().numel() >= 11_999
    assert torch.cat([first, g(*start)]).unique().numel() >= 23_998
    torch.manual_seed(3)
    again = g(*start)
    torch.manual_seed(3)
    assert torch.equal(g(*start), again)


def test_a_differentiated_loop_that_draws_runs_eagerly():
    """To count its steps beforehand, a program would have to draw the very numbers."""

    def f(x, limit):
        return while_loop(lambda x: x.sum() < limit, lambda x: (x + torch.rand_like(x),), (x,))

    x = torch.ones(5, requires_grad=True)
    for limit in (10.0, 100.0):
        (y,) = compiled(f)(x, torch.tensor(limit))
        assert limit <= y.sum() < limit + 5
        (grad,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(grad, torch.ones(5))
