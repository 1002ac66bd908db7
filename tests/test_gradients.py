"""What has gradients in compiled code, and what has none: regions, modes, views, higher orders."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.compiling import assert_matches_eager, assert_module_matches_eager, compiled, leaf


def no_grad_region(x, w):
    y = (x * w).sin()
    with torch.no_grad():
        scale = y.abs().mean()
    return y / scale


def enable_grad_region(x, w):
    with torch.no_grad():
        a = x * w
        with torch.enable_grad():
            b = x * w.exp()
    return a + b


def detached(x, w):
    y = x * w
    return y.detach() * x + y


@pytest.mark.parametrize("f", [no_grad_region, enable_grad_region, detached])
def test_regions_without_gradients(f):
    assert_matches_eager(compiled(f), leaf(4), leaf(4))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_outside(mode):
    module, x = nn.Linear(4, 4), leaf(2, 4)
    f = compiled(module)
    with mode():
        assert_matches_eager(f, x)
        y = f(x)
    assert not y.requires_grad
    assert y.is_inference() == (mode is torch.inference_mode)
    assert_module_matches_eager(module, x)  # and with gradients after that


def test_inference_mode_inside():
    def f(x):
        with torch.inference_mode():
            y = x.exp()
        return y.sum()

    x = torch.randn(4)
    assert_matches_eager(compiled(f, fullgraph=False), x)


def test_outputs_without_gradients_among_others():
    def f(x, y):
        return x * 2, y * 3, (x > 0), x.argmax(), (x * y).detach(), x.sin()

    assert_matches_eager(compiled(f), leaf(4), torch.randn(4))
    outputs = compiled(f)(leaf(4), torch.randn(4))
    assert [y.requires_grad for y in outputs] == [True, False, False, False, False, True]


def test_requires_grad_follows_the_input():
    f, x = compiled(lambda x: x * 2), torch.randn(3)
    for wanted in (False, True, False):
        assert f(x.requires_grad_(wanted)).requires_grad == wanted


def test_frozen_parameters():
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    module[0].requires_grad_(False)
    assert_module_matches_eager(module, leaf(3, 4))
    module = copy.deepcopy(module)
    run, x = compiled(module), torch.randn(3, 4)
    run(x).sum().backward()
    assert module[0].weight.grad is None
    module[0].requires_grad_(True)  # thawed: the next call must see it
    run(x).sum().backward()
    assert module[0].weight.grad is not None


def test_an_input_passed_twice():
    def f(x, y):
        return x * y.sin() + y

    x, y = leaf(4), leaf(4)
    y.data.copy_(x)
    compiled(f)(x, x).sum().backward()
    f(y, y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


def test_views_of_one_input():
    def run(f):
        torch.manual_seed(0)
        base = leaf(4, 6)
        f(base[:2], base[1:3].flip(0), base.t()).sum().backward()
        return base.grad

    def f(a, b, c):
        return (a * b).sum() + (c[2] * c[3]).exp()

    torch.testing.assert_close(run(compiled(f)), run(f))


def test_an_output_that_is_a_view_of_an_input():
    assert_matches_eager(compiled(lambda x: (x.t(), x.t() * 2)), leaf(3, 4))
    assert_matches_eager(compiled(lambda x: x.view(-1)), leaf(3, 4))


def test_an_output_that_is_overwritten():
    def run(f):
        torch.manual_seed(0)
        x = leaf(3, 4)
        y, z = f(x)
        y.mul_(2)
        z.add_(1)
        (y.sum() + z.square().sum()).backward()
        return x.grad

    def f(x):
        return x.sinh(), x.cosh().t()

    torch.testing.assert_close(run(compiled(f)), run(f))


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[1:]], ids=["whole", "view"])
def test_an_activation_passed_in_and_overwritten(part):
    def f(x, k):
        x[0].mul_(k)
        return x.sin()

    def run(f):
        torch.manual_seed(0)
        x, k = leaf(3, 4), leaf(4)
        activation = x * 1
        y = f(part(activation), k)
        (y.sum() + activation.square().sum()).backward()
        return x.grad, k.grad, activation.detach()

    torch.testing.assert_close(run(compiled(f)), run(f))


@pytest.mark.parametrize("dynamic", [None, True])
def test_batches_of_several_sizes(dynamic):
    def run(wrap):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
        f, grads = wrap(module), []
        for n in (3, 5, 1, 7, 3):
            x = leaf(n, 4)
            F.cross_entropy(f(x), torch.arange(n) % 3).backward()
            grads.append(x.grad)
        return grads, [p.grad for p in module.parameters()]

    actual = run(lambda f: compiled(f, dynamic=dynamic))
    torch.testing.assert_close(actual, run(lambda f: f))


def test_complex_parameters():
    module = nn.ParameterDict({"w": leaf(3, 3, dtype=torch.complex64)})

    def f(x, w):
        return torch.view_as_real((x @ w).tanh() * w.conj()[0])

    assert_matches_eager(compiled(f), leaf(2, 3, dtype=torch.complex64), module["w"])


def test_parameters_of_several_dtypes():
    def f(x, a, b, c):
        return (x @ a.float()).bfloat16() @ b, (x.double() * c).sum()

    inputs = leaf(2, 3), leaf(3, 3, dtype=torch.float16)
    inputs += leaf(3, 2, dtype=torch.bfloat16), leaf(3, dtype=torch.float64)
    assert_matches_eager(compiled(f), *inputs, rtol=2e-2, atol=2e-2)


def cube(x):
    return (x.pow(3) * x.sin()).sum()


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad(cube),
        torch.func.grad_and_value(cube),
        torch.func.vmap(torch.func.grad(cube)),
        torch.func.grad(lambda x: torch.func.grad(cube)(x).sum()),
        torch.func.hessian(lambda x: cube(x[0])),
        torch.func.jacrev(lambda x: x.sin() * x[0]),
        torch.func.jacfwd(lambda x: x.sin() * x[0]),
        lambda x: torch.func.jvp(torch.sin, (x,), (x * 2,)),
        lambda x: torch.func.vjp(torch.sin, x)[1](x),
        torch.func.vmap(lambda x: x.softmax(0) @ x, in_dims=1, out_dims=0),
    ],
    ids=["grad", "value", "vmap", "twice", "hessian", "jacrev", "jacfwd", "jvp", "vjp", "vmap 1"],
)
def test_function_transforms_inside(transform):
    x = torch.randn(3, 3)
    assert_matches_eager(compiled(transform), x)


def test_gradient_penalty_inside():
    def f(x, w):
        grads = torch.func.grad(lambda x: (x @ w).tanh().square().sum())(x)
        return (grads.norm(dim=1) - 1).square().sum()

    assert_matches_eager(compiled(f), leaf(3, 4), leaf(4, 2))


@pytest.mark.parametrize("batch", [(), (1,)])
def test_distances_of_an_empty_batch(batch):
    x = torch.randn(0, 4, 5, requires_grad=True)
    y = torch.randn(*batch, 3, 5, requires_grad=True)
    result = compiled(torch.cdist)(x, y)
    result.sum().backward()
    assert x.grad.shape == x.shape
    assert torch.equal(y.grad, torch.zeros_like(y))
