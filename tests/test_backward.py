"""The backward of compiled code: tangents of any stride or none, and several backwards."""

import pytest
import torch
from torch import nn

from tests.compiling import assert_matches_eager, compiled, leaf

TANGENTS = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "expanded": lambda: torch.randn(1, 3, 1, 1).expand(2, 3, 4, 5),
    "expanded from a number": lambda: torch.tensor(2.0).expand(2, 3, 4, 5),
    "transposed": lambda: torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "with gaps": lambda: torch.randn(4, 3, 8, 5)[::2, :, ::2],
    "misaligned": lambda: torch.randn(121)[1:].view(2, 3, 4, 5),
}


@pytest.mark.parametrize("x_format", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("tangent", TANGENTS.values(), ids=TANGENTS)
def test_tangents_of_any_stride(tangent, x_format):
    x = torch.randn(2, 3, 4, 5).to(memory_format=x_format).requires_grad_()
    assert_matches_eager(
        compiled(lambda x: (x.sin() * 2, x.exp())), x, tangents=[tangent(), tangent()]
    )


def test_tangents_that_change_their_stride():
    f = compiled(lambda x: x.sin())
    for tangent in TANGENTS.values():
        x, given = leaf(2, 3, 4, 5), tangent()
        f(x).backward(given)
        torch.testing.assert_close(x.grad, given * x.detach().cos())


def test_tangents_without_elements():
    x = leaf(0, 4)
    assert_matches_eager(compiled(lambda x: x.t() * 2), x, tangents=[torch.empty(0, 4).t()])


@pytest.mark.parametrize("given", [(True, False), (False, True)])
def test_some_outputs_without_a_tangent(given):
    tangents = [torch.randn(4) if g else None for g in given]
    assert_matches_eager(
        compiled(lambda x, y: (x.sin() * y, x * y.exp())), leaf(4), leaf(4), tangents=tangents
    )


def test_gradients_that_are_nothing_are_zeros():
    """Eager leaves None, where AOTAutograd, on any backend, has one backward for all outputs."""
    for backend in ("openxla", "aot_eager"):
        x, y = leaf(4), leaf(4)
        torch.compile(lambda x, y: (x.sin() * y, y.exp()), backend=backend)(x, y)[
            1
        ].sum().backward()
        assert torch.equal(x.grad, torch.zeros(4))


def test_a_tangent_of_another_shape_is_an_error():
    y = compiled(lambda x: x * 2)(leaf(4))
    with pytest.raises(RuntimeError, match="Mismatch in shape"):
        y.backward(torch.ones(3))


def test_backward_twice():
    f, x, y = compiled(lambda x: x.sin() * x), leaf(4), leaf(4)
    y.data.copy_(x)
    for run, leaf_ in ((f, x), (lambda x: x.sin() * x, y)):
        out = run(leaf_).sum()
        out.backward(retain_graph=True)
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_gradients_of_activations_are_kept():
    def run(f):
        torch.manual_seed(0)
        x = leaf(4)
        y = f(x)
        y.retain_grad()
        f(y).sum().backward()
        return x.grad, y.grad

    torch.testing.assert_close(run(compiled(torch.sin)), run(torch.sin))


def test_compiled_autograd():
    """Dynamo traces the engine's own backward too."""

    def run(wrap):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        f = wrap(module)
        for _ in range(3):
            f(torch.randn(3, 4)).square().sum().backward()
        return [p.grad for p in module.parameters()]

    with torch._dynamo.config.patch(compiled_autograd=True):
        actual = run(lambda f: compiled(f, fullgraph=False))
    torch.testing.assert_close(actual, run(lambda f: f))


def test_backwards_of_several_outputs():
    f, x, y = lambda x: (x.sin(), x * x), leaf(4), leaf(4)
    y.data.copy_(x)
    for run, leaf_ in ((compiled(f), x), (f, y)):
        a, b = run(leaf_)
        a.sum().backward(retain_graph=True)
        (3 * b).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_calls_whose_backwards_come_in_another_order():
    f = compiled(lambda x: x.sin() * x)
    leaves = [leaf(4) for _ in range(3)]
    outputs = [f(x) for x in leaves]
    for k in (1, 0, 2):
        outputs[k].sum().backward()
    for x in leaves:
        torch.testing.assert_close(x.grad, x.detach().sin() + x.detach() * x.detach().cos())


def test_saved_for_backward_and_then_changed():
    """Eager raises where a saved tensor was changed in place; so does compiled code."""
    for wrap in (compiled, lambda f: f):
        w, x = leaf(4), torch.randn(4)
        y = wrap(lambda w, x: (w * x).sin())(w, x)
        x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
