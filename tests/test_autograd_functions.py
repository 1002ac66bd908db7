"""`torch.autograd.Function` and hooks inside of compiled code and around it, against eager."""

import torch
from torch import nn

from tests.compiling import assert_matches_eager, compiled, leaf


class Scaled(torch.autograd.Function):
    """x * y * k, with gradients that no formula of torch's has."""

    @staticmethod
    def forward(ctx, x, y, k):
        ctx.save_for_backward(x, y)
        ctx.k = k
        return x * y * k

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y * 10, grad * x * 100, None


class Split(torch.autograd.Function):
    """Two results, of which one has no gradient."""

    @staticmethod
    def forward(ctx, x):
        order = x.argsort()
        ctx.mark_non_differentiable(order)
        ctx.save_for_backward(order)
        return x[order] * 2, order

    @staticmethod
    def backward(ctx, grad, _):
        (order,) = ctx.saved_tensors
        return torch.zeros_like(grad).scatter(0, order, grad * 3)


class Overwrite(torch.autograd.Function):
    """Writes its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx, grad):
        return grad * 7


def test_function_with_saved_tensors():
    assert_matches_eager(
        compiled(lambda x, y: Scaled.apply(x.sin(), y, 2.0).exp()), leaf(4), leaf(4)
    )


def test_function_with_inputs_without_gradients():
    assert_matches_eager(compiled(lambda x, y: Scaled.apply(x, y, 3)), leaf(4), torch.randn(4))


def test_function_with_results_without_gradients():
    assert_matches_eager(compiled(lambda x: Split.apply(x.tanh())), leaf(6))


def test_function_that_writes_its_input():
    """Dynamo breaks the graph at mark_dirty."""
    assert_matches_eager(compiled(lambda x: Overwrite.apply(x * 1).sin(), fullgraph=False), leaf(4))


def test_function_used_twice():
    """Dynamo breaks the graph where a tensor comes twice."""
    assert_matches_eager(
        compiled(lambda x: Scaled.apply(Scaled.apply(x, x, 1.0), x, 2.0), fullgraph=False), leaf(4)
    )


def test_hooks_on_tensors():
    def run(f):
        torch.manual_seed(0)
        x, seen = leaf(4), []
        x.register_hook(lambda g: g * 3)
        y = f(x)
        y.register_hook(lambda g: seen.append(g.clone()) or g * 5)
        y.sum().backward()
        return x.grad, seen

    def f(x):
        return x.sin() * x

    torch.testing.assert_close(run(compiled(f)), run(f))


def test_a_hook_inside():
    def f(x):
        y = x.sin()
        if y.requires_grad:
            y.register_hook(lambda g: g * 4)
        return y * x

    assert_matches_eager(compiled(f, fullgraph=False), leaf(4))


def test_hooks_on_modules():
    def run(compile_):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
        seen = []
        module[0].register_forward_pre_hook(lambda m, args: (args[0] * 2,))
        module[1].register_forward_hook(lambda m, args, y: y + 1)
        module.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()))
        x = leaf(2, 3)
        compile_(module)(x).square().sum().backward()
        return x.grad, seen, [p.grad for p in module.parameters()]

    torch.testing.assert_close(run(lambda m: compiled(m, fullgraph=False)), run(lambda m: m))


def test_hooks_after_accumulation():
    """An optimizer inside the backward: each parameter is updated as its gradient is ready."""

    def run(compile_):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))

        def update(p):
            with torch.no_grad():
                p.sub_(p.grad, alpha=0.1)
            p.grad = None

        for p in module.parameters():
            p.register_post_accumulate_grad_hook(update)
        f = compile_(module)
        for _ in range(3):
            f(torch.randn(2, 3)).square().sum().backward()
        return list(module.parameters())

    torch.testing.assert_close(run(compiled), run(lambda m: m))


def test_saved_tensor_hooks():
    """Hooks that move what is saved, as offloading does."""
    moved = []

    def pack(x):
        moved.append(x)
        return x.double()

    x, y = leaf(4), leaf(4)
    y.data.copy_(x)

    def f(x):
        return x.sin() * x.exp()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.float()):
        z = compiled(f)(x)
    z.sum().backward()
    f(y).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    assert moved
