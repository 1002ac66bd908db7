"""Mixed precision in compiled code: autocast and loss scaling, against eager and float64."""

import contextlib
import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.compiling import compiled

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
CLOSE = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def autocast(dtype, **kwargs):
    return torch.autocast("cpu", dtype=dtype, **kwargs)


def assert_near(actual, expected, tolerance):
    """The same dtypes, and numbers within the tolerance of each tensor's largest."""
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        assert (a - e).abs().max() <= tolerance * (1 + e.abs().max())


def block(x, w, b, kernel):
    """Linear layers, softmax, normalization, a convolution and a loss: each has its own rule."""
    y = F.linear(x, w, b).softmax(-1) @ x.t()
    y = F.layer_norm(y, y.shape[-1:])
    image = F.conv2d(x.view(1, 1, *x.shape), kernel).relu()
    loss = F.cross_entropy(y, torch.arange(len(x)))
    return y, image, loss, F.scaled_dot_product_attention(x[None], x[None], x[None])


def inputs(dtype=torch.float32):
    torch.manual_seed(0)
    shapes = (6, 8), (8, 8), (8,), (2, 1, 3, 3)
    return [torch.randn(*shape).to(dtype).requires_grad_() for shape in shapes]


@HALVES
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_forward_and_gradients(dtype, inside):
    def f(*given):
        with autocast(dtype) if inside else contextlib.nullcontext():
            return block(*given)

    def run(f):
        given = inputs()
        with contextlib.nullcontext() if inside else autocast(dtype):
            outputs = f(*given)
        sum(y.float().square().sum() for y in outputs).backward()
        return [*(y.detach() for y in outputs), *(x.grad for x in given)]

    actual, expected = run(compiled(f)), run(f)
    assert {y.dtype for y in actual} == {dtype, torch.float32}
    assert_near(actual, expected, CLOSE[dtype] / 4)


@HALVES
def test_without_gradients(dtype):
    given = [x.detach() for x in inputs()]
    with torch.no_grad(), autocast(dtype):
        assert_near(compiled(block)(*given), block(*given), CLOSE[dtype] / 4)


@HALVES
def test_as_close_to_float64_as_eager(dtype):
    def f(*given):
        with autocast(dtype):
            return block(*given)

    def errors(f):
        exact = [y.detach() for y in block(*inputs(torch.float64))]
        found = [y.detach() for y in f(*inputs())]
        return [float((y - e).norm() / e.norm()) for y, e in zip(found, exact, strict=True)]

    for ours, eager in zip(errors(compiled(f)), errors(f), strict=True):
        assert ours <= 1.2 * eager + 1e-6
        assert ours > 1e-6, "was computed in half precision"


def test_half_the_function():
    def f(x, w):
        with autocast(torch.bfloat16):
            half = x @ w
            with autocast(torch.bfloat16, enabled=False):
                whole = half.float() @ w
            again = whole @ w
        return half, whole, again, x @ w

    x, w = torch.randn(3, 4), torch.randn(4, 4)
    actual = compiled(f)(x, w)
    assert [y.dtype for y in actual] == [torch.bfloat16, torch.float32] * 2
    assert_near(actual, f(x, w), 4e-3)


def test_the_mode_around_a_call_may_change():
    f, x, w = compiled(torch.mm), torch.randn(3, 4), torch.randn(4, 4)
    for dtype in (torch.bfloat16, torch.float32, torch.float16, torch.bfloat16):
        with autocast(dtype if dtype != torch.float32 else None, enabled=dtype != torch.float32):
            assert f(x, w).dtype == dtype


def test_backward_under_another_mode():
    """As in eager, what decides is the mode of the forward."""
    given, twins = inputs(), inputs()
    with autocast(torch.bfloat16):
        y, z = compiled(block)(*given)[0], block(*twins)[0]
    with autocast(torch.bfloat16, enabled=False):
        y.float().square().sum().backward()
        z.float().square().sum().backward()
    assert_near([given[1].grad], [twins[1].grad], 5e-3)


def test_custom_function():
    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            return grad * 3

    def f(x, w):
        with autocast(torch.bfloat16):
            return Doubled.apply(x @ w)

    def run(f):
        torch.manual_seed(0)
        x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4)
        y = f(x, w)
        y.sum().backward()
        return y.detach(), x.grad

    assert_near(run(compiled(f, fullgraph=False)), run(f), 5e-3)


@pytest.mark.parametrize("compile_step", [False, True], ids=["model", "model and step"])
def test_loss_scaling(compile_step):
    """Twenty steps of which two overflow: as many are skipped as in eager, at the same scale."""
    x, y = torch.randn(20, 16, 8), torch.randn(20, 16, 1)
    x[7, 3, 2] = x[12, 0, 0] = 3e4  # float16 ends at 65504

    def train(compile_):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
        forward = compile_(model)
        if compile_step:
            optimizer.step = compile_(optimizer.step)
        scales, weights = [], []
        for k in range(20):
            optimizer.zero_grad()
            with autocast(torch.float16):
                loss = F.mse_loss(forward(x[k] * 3), y[k])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
            weights.append(copy.deepcopy([p.detach() for p in model.parameters()]))
        return scales, weights, scaler.state_dict()

    scales, weights, state = train(lambda f: compiled(f, fullgraph=False))
    eager_scales, eager_weights, eager_state = train(lambda f: f)
    assert scales == eager_scales
    assert state == eager_state
    assert sum(a > b for a, b in itertools.pairwise(scales)) == 2
    for actual, expected in zip(weights, eager_weights, strict=True):
        assert_near(actual, expected, 2e-3)
        assert all(w.isfinite().all() for w in actual)
