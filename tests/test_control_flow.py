"""Branches, loops and regions of torch's higher-order operators: values and gradients of eager's.

Compiled with fallback="error" unless a test says otherwise, so every one is lowered.
"""

import warnings

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch._higher_order_ops import associative_scan, cond, scan, while_loop
from torch._higher_order_ops import map as map_
from torch._higher_order_ops.invoke_subgraph import mark_compile_region
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils import _pytree as pytree

import xla_dynamo
from xla_dynamo.runtime import executables, metrics

ONLY_XLA = {"fallback": "error"}


def compiled(f, *, dynamic=None, **options):
    options = ONLY_XLA | options
    return torch.compile(f, backend="openxla", fullgraph=True, dynamic=dynamic, options=options)


def agrees(f, *args, dynamic=None, **options):
    """Values and, where inputs ask for them, gradients."""
    g = compiled(f, dynamic=dynamic, **options)
    expected, actual = f(*args), g(*args)
    torch.testing.assert_close(actual, expected, equal_nan=True)
    wanted = [a for a in pytree.tree_leaves(args) if torch.is_tensor(a) and a.requires_grad]
    if wanted:
        pairs = []
        for results in (expected, actual):
            total = sum(t.sin().sum() for t in pytree.tree_leaves(results) if t.requires_grad)
            pairs.append(torch.autograd.grad(total, wanted, allow_unused=True))
        torch.testing.assert_close(*reversed(pairs))


def variable(*shape):
    return torch.randn(*shape, requires_grad=True)


# --- cond -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("make", [torch.randn, variable])
def test_cond(sign, make):
    agrees(
        lambda x, s: cond(
            s > 0, lambda x: (x.sin(), x.t() @ x), lambda x: (x * 2, x.t() @ -x), [x]
        ),
        make(4, 3),
        torch.tensor(sign),
    )


def test_cond_of_one_element_and_of_nan():
    f = lambda x: cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))  # noqa: E731
    agrees(f, torch.tensor([1.0]))
    agrees(f, torch.tensor([float("nan")]))


def test_cond_takes_parameters_from_outside():
    layer, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    f = lambda x: cond(x.sum() > 0, lambda x: layer(x), lambda x: other(x), (x,))  # noqa: E731
    g = compiled(f)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        torch.testing.assert_close(g(x), f(x))
        expected, actual = (
            torch.autograd.grad(h(x).sum(), [*layer.parameters(), *other.parameters()])
            for h in (f, g)
        )
        torch.testing.assert_close(actual, expected)


def test_cond_in_cond_in_loop():
    def inner(x):
        return cond(x.sum() > 0, lambda x: x - 1.5, lambda x: x + 1.0, (x,))

    def body(i, x):
        return i + 1, cond(i % 2 == 0, inner, lambda x: x * 1.25, (x,))

    f = lambda x: while_loop(lambda i, x: i < 7, body, (torch.tensor(0), x))  # noqa: E731
    agrees(f, torch.randn(5))


def test_cond_on_a_size_is_decided_when_compiling():
    def f(x):
        return cond(x.shape[0] > 3, lambda x: x.sin(), lambda x: x.cos(), (x,))

    g = compiled(f, dynamic=True)
    for n in (2, 3, 4, 9):
        x = torch.randn(n, 2)
        torch.testing.assert_close(g(x), f(x))


def test_cond_of_dynamic_sizes():
    f = lambda x: cond(x.sum() > 0, lambda x: x.cumsum(0), lambda x: x * 2, (x,))  # noqa: E731
    g = compiled(f, dynamic=True)
    for n in (2, 5, 9):
        x = torch.randn(n, 3)
        torch.testing.assert_close(g(x), f(x))


def test_draws_in_a_branch():
    f = lambda x: cond(x.sum() > 0, torch.rand_like, lambda x: x * 1, (x,))  # noqa: E731
    g = compiled(f)
    first, second = g(torch.ones(100)), g(torch.ones(100))
    assert not torch.equal(first, second)
    assert 0.3 < first.mean() < 0.7
    torch.testing.assert_close(g(-torch.ones(100)), -torch.ones(100))
    torch.manual_seed(3)
    expected = f(torch.ones(100))
    torch.manual_seed(3)
    assert torch.equal(compiled(f, rng="torch")(torch.ones(100)), expected)


# --- while_loop -----------------------------------------------------------------------------------


def test_a_loop_of_10000_iterations_is_one_executable(monkeypatch):
    def f(x):
        return while_loop(lambda i, x: i < 10_000, lambda i, x: (i + 1, x * 3 + i), (i0, x))

    executor, runs = executables.executor, []

    def watched(loaded):
        execute = executor(loaded)
        return lambda buffers: (runs.append(1), execute(buffers))[1]

    monkeypatch.setattr(executables, "executor", watched)
    i0 = torch.tensor(0)
    g = compiled(f)
    metrics.clear_all()
    actual = g(torch.arange(8))
    assert metrics.counter_value("UncachedCompile") == 1
    assert len(runs) == 1
    torch.testing.assert_close(actual, f(torch.arange(8)))


def test_a_loop_that_runs_as_long_as_values_say():
    def f(x, limit):
        return while_loop(lambda x: x.sum() < limit, lambda x: (x * 1.5 + 0.1,), (x,))

    for limit in (-100.0, 5.0, 300.0):
        agrees(f, torch.rand(3, 2), torch.tensor(limit))


def test_loop_in_loop():
    def outer(i, x):
        _, y = while_loop(lambda j, y: j < i, lambda j, y: (j + 1, y + j), (torch.tensor(0), x))
        return i + 1, y * 0.5

    f = lambda x: while_loop(lambda i, x: i < 4, outer, (torch.tensor(0), x))  # noqa: E731
    agrees(f, torch.randn(3))


def test_gradient_of_a_loop():
    """Torch keeps every step's values: one program counts the steps, another keeps so many."""

    def f(x, w, limit):
        def body(i, x):
            return i + 1, x * w + i

        return while_loop(lambda i, x: x.sum() < limit, body, (torch.tensor(0), x))

    x, w = torch.rand(3, requires_grad=True), torch.full((3,), 1.5, requires_grad=True)
    for limit in (50.0, 500.0, 50.0):
        agrees(f, x, w, torch.tensor(limit))


def test_gradient_of_a_loop_compiles_once_for_a_number_of_steps():
    g = compiled(lambda x, n: while_loop(lambda i, x: i < n, step, (n * 0, x))[1].sum())

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
    agrees(f, variable(3), torch.tensor(3000))
    x = variable(3)
    # The gradient, in eager too, goes back through one step where there was none.
    assert torch.equal(compiled(f)(x, torch.tensor(0))[1], x)


def test_gradient_of_a_loop_in_the_middle_of_a_graph():
    def f(x, w):
        h = (x @ w).tanh()

        def body(i, h, total):
            return i + 1, (h @ w).tanh(), total + h.sum(0)

        start = (torch.tensor(0), h, torch.zeros_like(h[0]))
        i, h, total = while_loop(lambda i, h, total: i < 4, body, start)
        return h.sin() + total, i * 2

    agrees(f, variable(3, 3), variable(3, 3))


def test_a_loop_in_whose_gradient_an_operator_has_no_rule():
    def f(x):
        body = lambda i, x: (i + 1, host_cosine(x))  # noqa: E731
        return while_loop(lambda i, x: i < 3, body, (torch.tensor(0), x))[1] * 2

    agrees(f, torch.rand(3), fallback="eager")


def test_a_loop_with_a_number_as_counter():
    f = lambda x: while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x + i), (0, x))  # noqa: E731
    agrees(f, torch.randn(3), fallback="eager")


def test_every_step_draws_numbers_of_its_own():
    def outer(i, total):
        def inner(j, total):
            return j + 1, torch.cat([total[1000:], torch.rand(1000, dtype=torch.float64)])

        return i + 1, while_loop(lambda j, t: j < 3, inner, (i * 0, total))[1]

    f = lambda i, x: while_loop(lambda i, x: i < 4, outer, (i, x))[1]  # noqa: E731
    g, start = compiled(f), (torch.tensor(0), torch.zeros(12_000, dtype=torch.float64))
    first = g(*start)
    assert first.unique().numel() >= 11_999
    assert torch.cat([first, g(*start)]).unique().numel() >= 23_998
    torch.manual_seed(3)
    again = g(*start)
    torch.manual_seed(3)
    assert torch.equal(g(*start), again)


def test_gradient_of_a_scan_that_drops():
    def step(carry, x):
        y = torch.nn.functional.dropout(x, 0.5)
        return carry + y, y * 1

    x = torch.ones(20, 50, requires_grad=True)
    _, y = compiled(lambda x: scan(step, torch.zeros(50), x))(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert y.unique(dim=0).shape[0] == 20


def test_a_differentiated_loop_that_draws_runs_eagerly():
    """To count its steps beforehand, a program would have to draw the very numbers."""

    def f(x, limit):
        return while_loop(lambda x: x.sum() < limit, lambda x: (x + torch.rand_like(x),), (x,))

    x = torch.ones(5, requires_grad=True)
    for limit in (10.0, 100.0):
        (y,) = compiled(f, fallback="eager")(x, torch.tensor(limit))
        assert limit <= y.sum() < limit + 5
        (grad,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(grad, torch.ones(5))


@torch.library.custom_op("xla_dynamo_tests::host_cosine", mutates_args=())
def host_cosine(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


@host_cosine.register_fake
def _(x):
    return torch.empty_like(x)


def test_an_operator_without_a_rule_in_a_branch():
    def f(x):
        return cond(x.sum() > 0, host_cosine, lambda x: x * 1, (x.exp(),)) + 1

    agrees(f, torch.ones(2, 2), fallback="eager")


def test_a_check_of_values_in_a_branch_is_not_lost():
    def f(x):
        factor = torch.linalg.cholesky_ex(x, check_errors=True)[0]
        return (factor + 1).contiguous()

    g = lambda x: cond(x.sum() > 0, f, lambda x: x * 1, (x,))  # noqa: E731
    agrees(g, torch.eye(3), fallback="eager")
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="not positive-definite"):
        compiled(g, fallback="eager")(bad)
    torch._dynamo.reset()
    with pytest.raises(BackendCompilerFailed, match="raises errors that depend on values"):
        compiled(g)(bad)


# --- scan, map, associative_scan ------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("make", [torch.randn, variable])
def test_scan(length, reverse, make):
    weight = make(3, 3)

    def step(carry, x):
        carry = torch.tanh(carry @ weight + x)
        return carry, {"sum": carry.sum(-1), "twice": carry * 2}

    f = lambda init, xs: scan(step, init, xs, reverse=reverse)  # noqa: E731
    agrees(f, make(2, 3), make(length, 2, 3))


def test_scan_along_another_dimension():
    def step(carry, x):
        return {"a": carry["a"] + x["u"], "n": carry["n"] + 1}, carry["a"] * x["v"]

    init = {"a": torch.zeros(4), "n": torch.tensor(0)}
    xs = {"u": torch.randn(4, 5), "v": torch.randn(4, 5)}
    agrees(lambda init, xs: scan(step, init, xs, dim=1), init, xs)


def test_scan_of_dynamic_length():
    f = lambda xs: scan(lambda c, x: (c + x, c * x), torch.zeros(3), xs)  # noqa: E731
    g = compiled(f, dynamic=True)
    for n in (2, 6, 3):
        xs = torch.randn(n, 3)
        torch.testing.assert_close(g(xs), f(xs))


@pytest.mark.parametrize("make", [torch.randn, variable])
def test_map(make):
    f = lambda xs, y: map_(lambda x, y: (x.sin() @ y, x.sum()), xs, y)  # noqa: E731
    agrees(f, make(4, 2, 3), make(3, 5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_map_of_dtypes(dtype):
    agrees(
        lambda xs: map_(lambda x: x | True if dtype is torch.bool else x * 3, xs),
        torch.ones(3, 2).to(dtype),
    )


@pytest.mark.parametrize("make", [torch.randn, variable])
def test_associative_scan(make):
    def combine(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    f = lambda a, b: associative_scan(combine, (a, b), 0, combine_mode="generic")  # noqa: E731
    agrees(f, make(6, 2), make(6, 2))


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
            model, lambda model, xs: (model(xs) ** 2).mean(), optimizer, options=ONLY_XLA
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


# --- regions --------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    @mark_compile_region
    def forward(self, x):
        return x + torch.relu(self.layer(x))


@pytest.mark.parametrize("make", [torch.randn, variable])
def test_regions(make):
    model = torch.nn.Sequential(*(Block() for _ in range(3)))
    agrees(model, make(2, 4))
    expected, actual = (
        torch.autograd.grad(f(torch.ones(2, 4)).sum(), list(model.parameters()))
        for f in (model, compiled(model))
    )
    torch.testing.assert_close(actual, expected)


def test_an_operator_without_a_rule_in_a_region_cuts_at_that_operator():
    @mark_compile_region
    def region(x):
        return torch.nonzero(torch.relu(x.sin())).sum(0) + x.exp().sum().int()

    metrics.clear_all()
    x = torch.randn(5, 2)
    torch.testing.assert_close(compiled(region, fallback="eager")(x), region(x))
    assert [n for n in metrics.counter_names() if n.startswith("aten::")] == ["aten::nonzero"]


# --- flex_attention -------------------------------------------------------------------------------


@pytest.fixture
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that eager is slow
        yield


def test_flex_attention(quiet):
    slopes = torch.tensor([0.5, 0.25])
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 16, 16, device="cpu")

    def f(q, k, v):
        def alibi(score, b, h, i, j):
            return score + (j - i) * slopes[h]

        return flex_attention(q, k, v, alibi, mask, enable_gqa=True, return_lse=True)

    agrees(f, torch.randn(2, 2, 16, 8), torch.randn(2, 1, 16, 8), torch.randn(2, 1, 16, 8))


def test_flex_attention_of_dynamic_length(quiet):
    f = lambda q, bias: flex_attention(q, q, q, lambda s, b, h, i, j: s + bias[h, i, j])  # noqa: E731
    g = compiled(f, dynamic=True)
    for n in (5, 16, 9):
        q, bias = torch.randn(2, 2, n, 8), torch.randn(2, n, n)
        torch.testing.assert_close(g(q, bias), f(q, bias))


def test_rows_that_see_nothing(quiet):
    mask = create_block_mask(lambda b, h, i, j: (i > j) & (i > 3), None, None, 16, 16, device="cpu")
    agrees(
        lambda q: flex_attention(q, q, q, block_mask=mask, return_lse=True),
        torch.randn(1, 1, 16, 4),
    )


def test_an_error_inside_names_the_line():
    def f(x):
        def branch(x):
            return host_cosine(x)  # the line to name

        return cond(x.sum() > 0, branch, lambda x: x * 1, (x,))

    with pytest.raises(BackendCompilerFailed, match="host_cosine") as raised:
        compiled(f)(torch.ones(3, 1))
    assert "# the line to name" in str(raised.value)
