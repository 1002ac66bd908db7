"""Calls whose inputs share memory, of graphs that change an input: eager's results, no others."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import xla_dynamo
from tests.compiling import compiled, compiled_anew, leaf
from xla_dynamo.memory import overlaps
from xla_dynamo.memory.overlaps import are_apart
from xla_dynamo.runtime import metrics


def _reads_after(x, y):
    x.mul_(2)
    return x + y


def _copies(x, y):
    x.copy_(x.flip(0))
    y.add_(x.flip(0) * 2)
    return y.sum()


def _returns_a_view(x, y):
    x.mul_(2)
    return y[1], x[:2]


FUNCTIONS = [_reads_after, _copies, _returns_a_view]
APART = (lambda: torch.zeros(6), lambda: torch.zeros(6))


def shared():
    """Pairs of views of one tensor: some overlap, some do not."""
    t = torch.arange(36.0)
    yield t, t[:6], t[2:8]
    yield t, t[2:8], t[:6]
    yield t, t[:6], t[:6]
    yield t, t[:6], t[6:12]
    square = t.view(6, 6)
    yield t, square[2], square[:, 3]
    yield t, square[:, 1], square[:, 2]
    yield t, t[:12:2], t[1:12:2]


@pytest.mark.parametrize("f", FUNCTIONS)
@pytest.mark.parametrize("first", ["apart", "as they come"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_views_of_one_tensor(f, first, dynamic):
    g = compiled_anew(f, dynamic=dynamic)
    if first == "apart":
        g(*(make() for make in APART))
    for (t, *args), (u, *given) in zip(shared(), shared(), strict=True):
        expected, actual = f(*args), g(*given)
        torch.testing.assert_close(u, t)
        torch.testing.assert_close(actual, expected)


def test_only_what_shares_elements_runs_in_eager():
    g = compiled_anew(_reads_after)
    g(*(make() for make in APART))
    for count, (_, *given) in zip((1, 1, 1, 0, 1, 0, 0), shared(), strict=True):
        before = metrics.counter_value("EagerOverlappingInputs") or 0
        g(*given)
        g(*given)
        assert (metrics.counter_value("EagerOverlappingInputs") or 0) - before == 2 * count


def test_one_input_inside_of_another():
    def f(a, b):
        a.mul_(2)
        return b[1]

    for g in (compiled_anew(f), compiled_anew(f)):
        t = torch.arange(8.0)
        assert g(t, t[1:]) == 4


def test_a_buffer_of_the_module():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            self.seen.add_(x.sum())
            return x * 2

    found = []
    for compile_ in (lambda m: m, compiled):
        model = Counts()
        f = compile_(model)
        f(torch.ones(3))
        found.append([f(model.seen[1:]), f(model.seen[:3]), model.seen])
    torch.testing.assert_close(found[1], found[0])


def test_an_out_argument():
    def f(x, y):
        torch.mul(x, 3, out=x)
        return y * 1

    g = compiled_anew(f)
    g(torch.zeros(6), torch.zeros(6))
    t, u = torch.arange(8.0), torch.arange(8.0)
    torch.testing.assert_close(g(u[:6], u[2:]), f(t[:6], t[2:]))


def test_results_are_views_of_the_inputs_that_the_code_says():
    """Compiled for parts of one tensor, and called with tensors that share nothing."""
    g = compiled_anew(lambda x, y: (x[:2], y[1:]))
    t = torch.arange(12.0)
    for x, y in ((t[:6], t[6:]), (t[:6].clone(), t[6:].clone()), (t[2:8], t[1:7])):
        a, b = g(x, y)
        assert a.data_ptr() == x.data_ptr()
        assert b.data_ptr() == y[1:].data_ptr()


def test_under_autograd():
    """The forward of a training graph, with inputs that are changed inside and outside of it."""

    def f(total, x, y, w):
        total.add_(1)  # without a gradient: inside
        x.mul_(2)
        return x + (y * w).sin()

    def run(f):
        torch.manual_seed(0)
        w, base = leaf(4), leaf(12)
        found = f(torch.zeros(4), (base * 1)[:4], torch.ones(4), w)  # apart
        # overlap in pairs: the first two, the last two, the first and the last
        for total, x, y in ((3, 4, 8), (8, 0, 3), (8, 0, 6)):
            data = base * 1
            given = data.detach()[total : total + 4], data[x : x + 4], data[y : y + 4].detach(), w
            found = found + f(*given) + data[:4]
        return found.detach(), *torch.autograd.grad(found.sum(), [base, w])

    torch._dynamo.reset()
    for e, a in zip(run(f), run(compiled(f)), strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("mode", ["freeze", "buckets"])
def test_options(mode):
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x, y):
            x.add_(self.weight)
            return x + y * self.weight

    options = {"freeze": True} if mode == "freeze" else {"buckets": "auto"}
    torch._dynamo.reset()
    model = Adds()
    f = compiled(model, dynamic=mode == "buckets", **options)
    with torch.no_grad():
        f(torch.zeros(3, 4), torch.zeros(3, 4))
        f(torch.zeros(5, 4), torch.zeros(5, 4))
        t, u = torch.arange(24.0).view(6, 4), torch.arange(24.0).view(6, 4)
        torch.testing.assert_close(f(u[:5], u[1:]), model(t[:5], t[1:]))
        torch.testing.assert_close(u, t)


def test_sizes_that_change_at_one_address():
    """Sizes are dynamic: the same addresses are apart in one call, and not in the next."""
    g = compiled_anew(_reads_after, dynamic=True)
    for n in (2, 3, 5, 4):
        t, u = torch.arange(12.0), torch.arange(12.0)
        torch.testing.assert_close(g(u[:n], u[3 : 3 + n]), _reads_after(t[:n], t[3 : 3 + n]))
        torch.testing.assert_close(u, t)


def test_a_training_step_whose_parameters_share_memory():
    """One parameter is a part of another: both are changed, one after the other."""

    def make():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2, bias=False))
        model[1].weight = nn.Parameter(model[0].weight.data[1:3])
        return model, torch.optim.SGD(model.parameters(), 0.1, weight_decay=0.5, foreach=False)

    x = torch.randn(8, 4)
    model, optimizer = make()
    step = xla_dynamo.train_step(model, lambda m, x: m(x).square().mean(), optimizer)
    reference, reference_optimizer = make()
    for _ in range(2):
        step(x)
        reference_optimizer.zero_grad()
        reference(x).square().mean().backward()
        reference_optimizer.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_which_tensors_are_apart():
    t = torch.zeros(100)
    assert are_apart([t[:50]], [t[50:], t[50:], t[60:70]])
    assert not are_apart([t[:50]], [t[49:]])
    assert not are_apart([t[10:20]], [t])
    assert not are_apart([t, t[3:5]], [])
    assert are_apart([t[3:3]], [t])
    assert are_apart([t[::2]], [t[1::2]])
    assert not are_apart([t[::2]], [t[1::2]], gaps_count=True)
    assert not are_apart([t[::2]], [t[1::3]])
    assert not are_apart([t.view(torch.int32)[:4]], [t.view(torch.int16)[2:3]])
    assert are_apart([t[:1].expand(5)], [t[1:]])
    assert are_apart([torch.zeros(0)], [torch.zeros(0), torch.zeros(3)])
    assert are_apart([t.view(10, 10)[:, :5]], [t.view(10, 10)[:, 5:]])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_inputs_of_the_first_call_are_not_held(with_gradient, dynamic):
    f = compiled_anew(_reads_after, dynamic=dynamic)
    x, y = torch.randn(4), torch.randn(4, requires_grad=with_gradient) * 1
    alive = weakref.ref(x), weakref.ref(y)
    result = f(x, y)
    del x, y
    if with_gradient:
        result.sum().backward()
    gc.collect()
    assert [a() for a in alive] == [None, None]


def test_beside_wrappers_only_what_has_moved_is_looked_at(monkeypatch):
    """A step of decoding: a cache that changes, quantized weights, and a new position each time."""
    looked, real = [], overlaps.are_apart

    def counted(changed, others, **how):
        looked.append(len(changed))
        return real(changed, others, **how)

    def step(cache, weight, x):
        cache.add_(x)
        return weight + cache

    monkeypatch.setattr(overlaps, "are_apart", counted)
    weight = TwoTensor(torch.ones(64), torch.zeros(64))
    cache, run, places = torch.zeros(64), compiled_anew(step), torch.arange(640.0).view(10, 64)
    with torch.no_grad():
        for place in places:
            run(cache, weight, place)
        assert torch.equal(cache, places.sum(0))
        assert looked == [1, 1]  # the graph's call, and the program's
        before = metrics.counter_value("EagerOverlappingInputs") or 0
        result = run(cache, weight, cache[:])
        assert torch.equal(cache, 2 * places.sum(0))
        assert torch.equal(result.a, 1 + cache)
        run(cache, TwoTensor(cache, torch.zeros(64)), places[0])
    assert metrics.counter_value("EagerOverlappingInputs") == before + 2
