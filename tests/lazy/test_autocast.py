"""`torch.autocast("xla")`: dtypes as on other devices, and training under it."""

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from xla_dynamo import metrics


def f(name):
    return lambda *args: getattr(torch, name)(*args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda x, h: x @ h, "lower"),
        (lambda x, h: F.linear(x, h), "lower"),
        (lambda x, h: F.conv2d(x[None, None], h[None, None]), "lower"),
        (lambda x, h: F.scaled_dot_product_attention(x[None], h[None], x[None]), "lower"),
        (lambda x, h: h.exp(), "float32"),
        (lambda x, h: h.softmax(-1), "float32"),
        (lambda x, h: h.sum(), "float32"),
        (lambda x, h: F.layer_norm(h, (8,)), "float32"),
        (lambda x, h: F.cross_entropy(h, h.argmax(-1)), "float32"),
        (lambda x, h: torch.addcmul(x, h, h), "float32"),
        (lambda x, h: torch.addcmul(h, h, h), "lower"),
        (lambda x, h: x + h, "float32"),
        (lambda x, h: h + h, "lower"),
        (lambda x, h: x.double() @ x.double(), "float64"),
        (lambda x, h: h.sum(dtype=torch.float64), "float64"),
        (lambda x, h: (x > 0).sum(), "int64"),
    ],
)
def test_dtypes(run, expected, dtype):
    x = torch.randn(8, 8, device="xla")
    half = x.to(dtype)
    with torch.autocast("xla", dtype=dtype):
        result = run(x, half)
    assert result.dtype is (dtype if expected == "lower" else getattr(torch, expected))
    assert result.isfinite().all().item()


def test_the_default_and_what_is_outside():
    x = torch.randn(4, 4, device="xla")
    with torch.autocast("xla"):
        assert (x @ x).dtype is torch.bfloat16
        with torch.autocast("xla", enabled=False):
            assert (x @ x).dtype is torch.float32
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    assert (x @ x).dtype is torch.float32


def test_what_autocast_refuses():
    x = torch.rand(4, device="xla")
    with torch.autocast("xla"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(x, x)


@pytest.mark.parametrize("compiled", [False, True])
def test_training(compiled):
    """Losses are those of the CPU under its autocast, and gradients come in float32."""
    curves = []
    for device in ("cpu", "xla"):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
        net = net.to(device)
        call = torch.compile(net, backend="openxla") if compiled and device == "xla" else net
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for _ in range(8):
            x = torch.randn(32, 16, generator=generator).to(device)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = F.cross_entropy(call(x), x[:, :4].argmax(-1))
            optimizer.zero_grad()
            loss.backward()
            assert net[0].weight.grad.dtype is torch.float32
            optimizer.step()
            xla_dynamo.sync()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[1] == pytest.approx(curves[0], rel=2e-2)
    assert curves[1][-1] < curves[1][0]


def test_a_scaler_skips_what_overflows():
    layer = torch.nn.Linear(4, 4).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler = torch.amp.GradScaler("xla", init_scale=4.0, growth_interval=2)
    before = layer.weight.detach().cpu().clone()
    scales = []
    for factor in (float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        with torch.autocast("xla", dtype=torch.float16):
            loss = layer(torch.ones(2, 4, device="xla")).float().mean() * factor
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if factor != 1.0:
            assert torch.equal(layer.weight.detach().cpu(), before)
    assert scales == [2.0, 2.0, 4.0]
    assert not torch.equal(layer.weight.detach().cpu(), before)


def scaled_steps(device):
    """The scales and weights of steps with a gradient scaler, of which one overflows."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=3)
    found = []
    for step in range(8):
        x = torch.full((2, 4), float("inf") if step == 5 else step + 1.0).to(device)
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean() * 1e-3).backward()
        scaler.step(optimizer)
        scaler.update()
        found.append((scaler.get_scale(), model.weight.detach().cpu().clone()))
    return found


def test_gradient_scalers_run_on_the_device():
    metrics.clear_counters()
    for (scale, weight), (wanted, eager) in zip(
        scaled_steps("xla"), scaled_steps("cpu"), strict=True
    ):
        assert scale == wanted
        torch.testing.assert_close(weight, eager)
    assert set(metrics.executed_fallback_ops()) == {"aten::_local_scalar_dense"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("number", [0.5, 1.0, 3.3e-5, float("inf")])
def test_gradients_are_unscaled_as_in_eager(dtype, number):
    found = []
    for device in ("cpu", "xla"):
        grads = [torch.tensor([1.5, -2.25, 7e-3, 0.0]), torch.tensor(3.0), torch.empty(0)]
        grads = [grad.to(dtype).to(device) for grad in grads]
        overflow, factor = torch.zeros(1).to(device), torch.tensor(number).to(device)
        torch._amp_foreach_non_finite_check_and_unscale_(grads, overflow, factor)
        found.append([t.cpu() for t in (*grads, overflow)])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0, equal_nan=True)
