"""Gradients of gradients of compiled functions: `create_graph=True` gives what eager gives."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.compiling import compiled, leaf
from tests.doubled_gradient import Doubled


def discriminator():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(4 * 6 * 6, 8),
        nn.LayerNorm(8),
        nn.SiLU(),
        nn.Linear(8, 1),
    )


def penalty(f, x):
    (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


def assert_same_second_order(f, inputs, parameters=(), *, reduce=None, **options):
    """Compare the gradients of a gradient penalty, in all inputs and parameters, with eager's."""
    reduce = reduce or (lambda y: y.sin().sum())

    def second(g):
        given = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        leaves = [t for t in (*given, *parameters) if t.requires_grad]
        results = g(*given)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum(reduce(y) for y in results if y.requires_grad)
        first = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
        curved = sum(g.square().sum() for g in first if g is not None and g.requires_grad)
        return first, torch.autograd.grad(curved, leaves, allow_unused=True)

    expected, actual = second(f), second(compiled(f, **options))
    for e, a in zip(expected[0] + expected[1], actual[0] + actual[1], strict=True):
        if e is not None or (a is not None and a.any()):
            torch.testing.assert_close(a, e, atol=1e-5, rtol=1e-5)
    assert any(e is not None and e.any() for e in expected[1])


def test_a_gradient_penalty_through_a_discriminator():
    """Several steps, so that later calls, and those after an optimizer's step, are among them."""
    found = []
    for compile_ in (lambda m: m, compiled):
        torch.manual_seed(0)
        model = discriminator()
        f = compile_(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            optimizer.zero_grad()
            real, made = torch.randn(2, 5, 1, 6, 6).unbind()
            x = torch.lerp(real, made, torch.rand(5, 1, 1, 1)).requires_grad_()
            loss = f(made).mean() - f(real).mean() + 10 * penalty(f, x)
            loss.backward()
            optimizer.step()
        found.append([loss.detach(), *(p.grad for p in model.parameters()), *model.buffers()])
    for eager, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)


def test_products_with_the_hessian_and_third_derivatives():
    w = leaf(4, 4)

    def f(x):
        return (x @ w).tanh().pow(3).sum()

    g, v = compiled(f), torch.randn(3, 4)
    x = leaf(3, 4)
    for _ in range(2):
        for function in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
            torch.testing.assert_close(function(g, x, v), function(f, x, v))
    hessian = torch.autograd.functional.hessian
    torch.testing.assert_close(hessian(g, x), hessian(f, x))

    def third(f):
        y = f(x)
        for _ in range(2):
            y = torch.autograd.grad(y, x, create_graph=True)[0].square().sum()
        return torch.autograd.grad(y, [x, w])

    torch.testing.assert_close(third(g), third(f), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("fast", ["functional_call", "by hand"])
def test_an_inner_step_of_maml(fast):
    def outer(compile_):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
        weights = dict(model.named_parameters())
        if fast == "functional_call":
            f = compile_(lambda ws, x: torch.func.functional_call(model, ws, (x,)))
        else:
            f = compile_(
                lambda ws, x: torch.tanh(x @ ws["0.weight"].T + ws["0.bias"]) @ ws["2.weight"].T
            )
        for _ in range(3):
            y = f(weights, torch.randn(5, 3)).square().mean()
            grads = torch.autograd.grad(
                y, list(weights.values()), create_graph=True, allow_unused=True
            )
            weights = {
                n: w if g is None else w - 0.1 * g
                for (n, w), g in zip(weights.items(), grads, strict=True)
            }
        loss = f(weights, torch.randn(5, 3)).square().mean()
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    for e, a in zip(outer(lambda f: f), outer(compiled), strict=True):
        assert (a is None) == (e is None)
        torch.testing.assert_close(a, e)


def _untracked(x):
    with torch.no_grad():
        scale = x.exp()
    return x * x.detach() * scale + x.pow(3)


def _of_one_intermediate(x):
    y = x.sin()
    return y, y[0], y.t()


def _views_of_one_intermediate(x):
    y = x.sin() * x
    return y[0], y.t(), x[1:], x


def _changes_what_it_made(x):
    y = x * 2
    y[0].mul_(x[1])
    return y.relu() * y


def _checkpointed(x):
    return checkpoint(lambda x: x.sin().exp() * x, x, use_reentrant=False) * x


def _in_pieces(x):
    y = x.sin() * x
    torch._dynamo.graph_break()
    return y.relu() * y.exp()


FUNCTIONS = [
    _untracked,
    _of_one_intermediate,
    _views_of_one_intermediate,
    _changes_what_it_made,
    _checkpointed,
    lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) * x,
    lambda x: (x.sin(), x.detach().cos(), x.argmax(), x * 2),
    lambda x: torch.addmm(x[0], x, x).relu(),
]


@pytest.mark.parametrize("f", FUNCTIONS, ids=range(len(FUNCTIONS)))
def test_what_autograd_knows_of_the_function_is_kept(f):
    assert_same_second_order(f, [leaf(4, 4)])


def test_a_function_in_pieces():
    assert_same_second_order(_in_pieces, [leaf(4, 4)], fullgraph=False)


def test_inputs_of_all_kinds():
    """With and without a gradient, not read by any gradient, views of others, sizes, wholes."""
    base = leaf(6, 4)
    shift, places = torch.randn(4), torch.tensor([0, 1, 1])

    def f(x, shift, places, n, y):
        return (x * y)[places].exp() * n + shift + places.sum()

    assert_same_second_order(lambda x, s, p, y: f(x, s, p, 3, y), [base, shift, places, base])
    g = compiled(f)
    x = base * 1
    for h in (f, g):  # two inputs, one a view of the other
        first = torch.autograd.grad(h(x[:3], shift, places, 2, x[1:4]).sum(), x, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), x)
        if h is f:
            expected = first[0].detach(), second[0]
    torch.testing.assert_close((first[0].detach(), second[0]), expected)


def test_dynamic_sizes():
    f = compiled(lambda x, y: (x.sin() * x).relu() + y, dynamic=True)
    for n in (3, 5, 2):
        x = leaf(n, 4)
        (first,) = torch.autograd.grad(f(x, leaf(n, 4)).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        alive = (x.sin() * x > 0).float()
        torch.testing.assert_close(
            second, (2 * x.cos() - x * x.sin()).detach() * alive, atol=1e-5, rtol=1e-5
        )


def test_autocast():
    """The graph runs under the autocast of its forward, whatever is on in the backward."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    x = leaf(3, 4)
    found = []
    for f in (model, compiled(model)):
        with torch.autocast("cpu", torch.bfloat16):
            y = f(x)
        (first,) = torch.autograd.grad(y.float().sum(), x, create_graph=True)
        found.append([first.detach(), *torch.autograd.grad(first.square().sum(), [x])])
    torch.testing.assert_close(found[1], found[0], atol=1e-2, rtol=2e-2)
    assert not torch.equal(first.detach(), torch.autograd.grad(model(x).sum(), x)[0])


def test_hooks_and_several_backwards():
    w, seen = leaf(4), []
    f = compiled(lambda x: (x * w).sin())
    x = leaf(4)
    x.register_hook(lambda g: seen.append(g) or g * 3)
    y = f(x).sum()
    (plain,) = torch.autograd.grad(y, x, retain_graph=True)
    (kept,) = torch.autograd.grad(y, x, create_graph=True)
    torch.testing.assert_close(kept, plain)
    torch.testing.assert_close(plain, 3 * (w * (x * w).cos()).detach())
    curved = torch.autograd.grad(kept.sum(), w)[0]
    torch.testing.assert_close(
        curved, 3 * ((x * w).cos() - w * x * (x * w).sin()).detach(), atol=1e-5, rtol=1e-5
    )
    y.backward()
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x, create_graph=True)


def test_a_graph_without_saved_tensors_is_freed_too():
    x = leaf(4)
    y = compiled(lambda x: x + 1)(x)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x, torch.ones(4), create_graph=True)


def test_random_numbers_are_those_of_the_forward():
    def f(x, w):
        return nn.functional.dropout(x.sin() * w, 0.5) * x

    x, w = leaf(64), leaf(64)
    for _ in range(2):
        torch.manual_seed(1)
        g = compiled(f, rng="torch")
        found = []
        for h in (f, g):
            torch.manual_seed(2)
            y = h(x, w)
            state = torch.get_rng_state()
            (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            assert torch.equal(torch.get_rng_state(), state)
            found.append([y.detach(), first.detach(), *torch.autograd.grad(first.sum(), [x, w])])
        torch.testing.assert_close(found[1], found[0])


def test_random_numbers_that_cannot_be_drawn_again_are_an_error():
    f = compiled(lambda x: nn.functional.dropout(x.sin(), 0.5))
    x = leaf(8)
    with pytest.raises(RuntimeError, match=r"random numbers(.|\n)*dropout(.|\n)*'rng': 'torch'"):
        torch.autograd.grad(f(x).sum(), x, create_graph=True)
    # Those that no gradient depends on may differ.
    g = compiled(lambda x: x.sin() + torch.rand_like(x))
    (first,) = torch.autograd.grad(g(x).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], -x.sin().detach())


def test_a_backward_of_the_users_own_is_an_error():
    f, x = compiled(lambda x: Doubled.apply(x) * x), leaf(4)
    (plain,) = torch.autograd.grad(f(x).sum(), x)
    torch.testing.assert_close(plain, 5 * x.detach().square())
    with pytest.raises(RuntimeError, match=r"user's own backward(.|\n)*Doubled.apply"):
        torch.autograd.grad(f(x).sum(), x, create_graph=True)


def test_tensors_that_were_changed_are_an_error():
    w = leaf(4)
    f = compiled(lambda x, b: (x * w).sin() + b)
    x, b = leaf(4), leaf(4)
    y = f(x, b)
    with torch.no_grad():
        b.add_(1)  # no gradient depends on it
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True, retain_graph=True)
    torch.testing.assert_close(
        torch.autograd.grad(first.sum(), x)[0], (-w * w * (x * w).sin()).detach()
    )
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_an_input_that_the_graph_changes():
    def f(x, y):
        x = x.mul_(y)
        return x.sin()

    x, y = leaf(4), leaf(4)
    with pytest.raises(RuntimeError, match=r"changes its input .* in place(.|\n)*a clone"):
        torch.autograd.grad(compiled(f)(x * 1, y).sum(), y, create_graph=True)

    def g(x, y):  # no gradient reads what it changes
        x.add_(1)
        return (y * y).sin() + x

    total, expected = torch.zeros(4), (2 * y * (y * y).cos()).detach()
    h = compiled(g)
    for n in (1, 2):
        (first,) = torch.autograd.grad(h(total, y).sum(), y, create_graph=True)
        torch.testing.assert_close(first.detach(), expected)
        assert torch.equal(total, torch.full((4,), float(n)))
        assert torch.autograd.grad(first.sum(), y)[0].any()

    z = leaf(4) * 1
    (first,) = torch.autograd.grad(compiled(g)(z, y).sum() + z.sum(), y, create_graph=True)
    torch.testing.assert_close(first.detach(), expected)


def test_small_inputs_are_copied_before_they_change():
    """Spectral norm changes its vectors in each forward, and computes the weight from them."""
    found = []
    for compile_ in (lambda m: m, compiled):
        torch.manual_seed(0)
        norm = nn.utils.parametrizations.spectral_norm
        model = nn.Sequential(norm(nn.Linear(4, 8)), nn.Tanh(), norm(nn.Linear(8, 1)))
        f = compile_(model)
        for _ in range(2):
            x = torch.randn(5, 4, requires_grad=True)
            loss = penalty(f, x)
            grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
        found.append([loss.detach(), *(g for g in grads if g is not None), *model.buffers()])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_inputs_are_freed_with_the_graph():
    f = compiled(lambda x: x.relu())
    for _ in range(2):
        given = torch.randn(8) * leaf(8)
        alive = weakref.ref(given)
        y = f(given).sum()
        del given
        assert alive() is not None
        y.backward()
        gc.collect()
        assert alive() is None
    # What gradients do not depend on is not held.
    g = compiled(lambda x: x + 1)
    for _ in range(2):
        given = torch.randn(8) * leaf(8)
        alive = weakref.ref(given)
        y = g(given)
        del given
        assert alive() is None
        (first,) = torch.autograd.grad(y, leaf(1), torch.ones(8), create_graph=True, allow_unused=1)
        assert first is None
