"""Gradients on the lazy device, as on the CPU."""

import pytest
import torch

import xla_dynamo
from tests.comparison import compare

XLA = xla_dynamo.device()


def assert_same_gradients_as_on_cpu(program, *inputs):
    """Compare the result of a program and the gradients of its inputs on CPU and device."""
    found = []
    for device in ("cpu", XLA):
        leaves = [x.detach().to(device).requires_grad_() for x in inputs]
        result = program(*leaves)
        result.backward(torch.linspace(-1, 1, result.numel()).view(result.shape).to(device))
        assert all(x.grad.device == x.device for x in leaves)
        found.append([t.detach().cpu() for t in (result, *(x.grad for x in leaves))])
    compare(found[0], found[1], values=True, strides=False)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: torch.tanh(x @ w).sum(0),
        lambda x, w: torch.nn.functional.softmax(x @ w, 1)[1:],
        lambda x, w: torch.nn.functional.layer_norm(x @ w, (2,)),
        lambda x, w: torch.where(x > 0, x, 2 * x) @ w.view(3, 2),
        lambda x, w: (
            torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])[0] @ w
        ),
        lambda x, w: torch.einsum("ij,jk->ki", x, w).cumsum(0),
    ],
)
def test_gradients(program):
    assert_same_gradients_as_on_cpu(program, torch.randn(4, 3), torch.randn(3, 2))


def test_in_place_writes_and_views():
    def program(x):
        y = x * 2
        y[0] += x[1]
        y.t()[1].mul_(3)
        return y.exp().view(-1)[1:]

    assert_same_gradients_as_on_cpu(program, torch.randn(2, 3))


def test_gradients_accumulate():
    x = torch.ones(2, device=XLA, requires_grad=True)
    for _ in range(3):
        (2 * x).sum().backward()
        xla_dynamo.sync()
    assert x.grad.tolist() == [6, 6]


def test_gradients_of_gradients():
    x = torch.tensor([1.0, 2.0], device=XLA, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6, 12]


def test_gradients_cross_devices():
    x = torch.ones(2, requires_grad=True)
    (3 * x.to(XLA)).sum().cpu().backward()
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [3, 3]


def test_hooks_and_functions_of_the_users():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad

    x = torch.tensor([3.0], device=XLA, requires_grad=True)
    seen = []
    x.register_hook(lambda grad: seen.append(grad.item()))
    Double.apply(x).sum().backward()
    assert seen == [6.0]


def test_a_leaf_refuses_writes_as_on_the_cpu():
    x = torch.ones(2, device=XLA, requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        x += 1
    y = x.exp()
    z = (y * y).sum()
    y += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


def test_checkpointed_regions():
    from torch.utils.checkpoint import checkpoint

    def program(x):
        return checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False)

    assert_same_gradients_as_on_cpu(program, torch.randn(3))


def test_inference_mode_and_no_grad():
    x = torch.ones(2, device=XLA, requires_grad=True)
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        y = x * 2
        y += 1
        assert y.tolist() == [3, 3]
    assert y.cpu().tolist() == [3, 3]


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_draw_the_same_numbers_again(use_reentrant):
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device="xla", requires_grad=True)
    y = checkpoint(
        lambda h: torch.nn.functional.dropout(h, 0.5), x * 1, use_reentrant=use_reentrant
    )
    y.sum().backward()
    assert torch.equal(x.grad.cpu() != 0, y.detach().cpu() != 0)
