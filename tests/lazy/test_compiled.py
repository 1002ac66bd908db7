"""`torch.compile` and `train_step` on 'xla' tensors: one graph, beside recorded operators."""

import copy

import pytest
import torch
import torch.nn.functional as F

import xla_dynamo
from tests.compiling import compiled
from xla_dynamo.runtime import metrics


@pytest.fixture(autouse=True)
def cold():
    torch._dynamo.reset()
    metrics.clear_all()


def on_both(f, *args, **how):
    """What eager makes of tensors on the CPU, and compiled code of the same on the device."""
    here = [a.clone() if torch.is_tensor(a) else a for a in args]
    there = [a.to("xla") if torch.is_tensor(a) else a for a in args]
    expected, actual = f(*here), compiled(f, **how)(*there)
    assert_same_on_device((expected, here), (actual, there))
    return actual


def assert_same_on_device(expected, actual):
    leaves = zip(*map(torch.utils._pytree.tree_leaves, (expected, actual)), strict=True)
    for e, a in leaves:
        if torch.is_tensor(e):
            assert a.device.type == "xla"
            torch.testing.assert_close(a.cpu(), e)
            assert a.stride() == e.stride()
        else:
            assert e == a


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 5),
    )


def test_one_graph_that_takes_what_is_on_the_device():
    model = net().eval()
    x = torch.randn(2, 3, 8, 8)
    there = copy.deepcopy(model).to("xla")
    given = x.to("xla")
    xla_dynamo.sync()
    metrics.clear_all()
    f = compiled(there)
    with torch.no_grad():
        for _ in range(3):
            actual = f(given)
        expected = model(x)
    assert metrics.counter_value("UncachedCompile") == 1
    assert metrics.metric_data("TransferToDeviceTime") is None
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, True])
def test_values_and_strides(dynamic):
    on_both(
        lambda x: (x.softmax(-1), x.t() * 2, x[1:].sum(), 3), torch.randn(4, 6), dynamic=dynamic
    )


def test_views_and_gaps_among_the_inputs():
    x = torch.randn(6, 8).to("xla")
    f = compiled(lambda a, b, c, d: a @ b + c.sum() + d.imag.sum())
    z = torch.randn(4, dtype=torch.complex64)
    args = (x[::2], x[:, 1:4].t().contiguous().t(), x.t()[3], z.to("xla").conj())
    args = (args[0], x[:, 1:9:2].expand(6, 4)[:, :4].repeat(2, 1)[:8], *args[2:])
    here = [a.cpu() for a in args]
    torch.testing.assert_close(
        f(*args).cpu(), here[0] @ here[1] + here[2].sum() + here[3].imag.sum()
    )


def test_inputs_that_are_changed():
    def f(cache, x):
        cache[1:3].add_(x)
        return cache.sum(), x[1].view(2, 2), x

    cache, x = torch.ones(4, 4, device="xla"), torch.arange(8.0, device="xla").view(2, 4)
    before = cache * 3  # pending, and to be computed of what was there
    f = compiled(f)
    total, view, same_x = f(cache, x)
    assert same_x is x
    view.mul_(10)
    assert x[1].tolist() == [40, 50, 60, 70]
    assert before.tolist() == [[3.0] * 4] * 4
    assert total.item() == 44
    address = cache.cpu()
    f(cache, torch.zeros_like(x))
    assert torch.equal(cache.cpu(), address)


def test_one_tensor_twice():
    def f(x, y):
        x.add_(1)
        return x * y

    x = torch.ones(3, device="xla")
    assert compiled(f)(x, x).tolist() == [4, 4, 4]
    assert x.tolist() == [2, 2, 2]


def test_gradients_of_compiled_and_recorded_operators():
    def loss(f, model, x):
        hidden = x.sin()  # recorded, then compiled, then recorded
        return f(hidden).square().mean()

    model = net()
    there = copy.deepcopy(model).to("xla")
    x = torch.randn(2, 3, 8, 8)
    loss(model, model, x).backward()
    loss(compiled(there), there, x.to("xla")).backward()
    for p, q in zip(model.parameters(), there.parameters(), strict=True):
        assert q.grad.device.type == "xla"
        torch.testing.assert_close(q.grad.cpu(), p.grad, rtol=1e-4, atol=1e-5)
    assert_same_on_device(list(model.buffers()), list(there.buffers()))


def test_a_training_loop_that_mixes_both():
    """The model is compiled; loss and optimizer are recorded, and run at each sync."""
    model = net()
    there = copy.deepcopy(model).to("xla")
    curves = []
    for module, f in ((model, model), (there, compiled(there))):
        optimizer = torch.optim.AdamW(module.parameters(), 1e-2)
        generator = torch.Generator().manual_seed(1)
        losses = []
        for step in range(6):
            device = next(module.parameters()).device
            x = torch.randn(4, 3, 8, 8, generator=generator).to(device)
            optimizer.zero_grad()
            loss = F.cross_entropy(f(x), torch.arange(4, device=device))
            loss.backward()
            optimizer.step()
            xla_dynamo.sync() if device.type == "xla" else None
            losses.append(loss.item())
            if step == 2:
                settled = metrics.counter_value("UncachedCompile")
        curves.append(losses)
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    assert metrics.counter_value("UncachedCompile") == settled


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_train_step(optimizer):
    model = net()
    there = copy.deepcopy(model).to("xla")

    def loss_fn(model, x, y):
        return F.cross_entropy(model(x), y)

    ours, theirs = optimizer(there.parameters(), lr=1e-2), optimizer(model.parameters(), lr=1e-2)
    step = xla_dynamo.train_step(there, loss_fn, ours)
    for n in range(5):
        x, y = torch.randn(4, 3, 8, 8), torch.arange(4)
        ours.param_groups[0]["lr"] = theirs.param_groups[0]["lr"] = 1e-2 / (n + 1)
        theirs.zero_grad()
        expected = loss_fn(model, x, y)
        expected.backward()
        theirs.step()
        actual = step(x.to("xla"), y.to("xla"))
        assert actual.device.type == "xla"
        assert actual.item() == pytest.approx(expected.item(), rel=1e-3)
        if n == 1:
            settled = metrics.counter_value("UncachedCompile")
    assert metrics.counter_value("UncachedCompile") == settled
    for (name, p), q in zip(model.named_parameters(), there.parameters(), strict=True):
        if name != "0.bias":  # which has no gradient but rounding errors: batch norm follows it
            torch.testing.assert_close(q.cpu(), p, rtol=1e-3, atol=1e-4)


def test_parameters_keep_their_memory():
    """A step writes new values where the old ones were."""
    from xla_dynamo.lazy.contents import cell_of

    there = net().to("xla")
    step = xla_dynamo.train_step(
        there, lambda m, x: m(x).square().mean(), torch.optim.SGD(there.parameters(), 1e-3)
    )
    x = torch.randn(4, 3, 8, 8, device="xla")
    step(x)
    before = there[4].weight.cpu()
    address = cell_of(there[4].weight).value.buffer.unsafe_buffer_pointer()
    step(x)
    assert cell_of(there[4].weight).value.buffer.unsafe_buffer_pointer() == address
    assert not torch.equal(there[4].weight.cpu(), before)


def test_operators_without_a_rule():
    """They run on the CPU, between compiled parts, and are counted."""

    def f(x):
        y = x.sin()
        return torch.linalg.lstsq(y, y)[0], y + 1

    x = torch.randn(5, 5)
    expected, actual = f(x), torch.compile(f, backend="openxla")(x.to("xla"))
    torch.testing.assert_close(actual[0].cpu(), expected[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(actual[1].cpu(), expected[1])
    assert any("lstsq" in name for name in metrics.counter_names())


def test_a_graph_that_breaks_at_a_value():
    def f(x):
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1

    g = torch.compile(f, backend="openxla")
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign)
        torch.testing.assert_close(g(x.to("xla")).cpu(), f(x))


def test_random_numbers_follow_the_devices_seed():
    f = compiled(lambda x: F.dropout(x, 0.5) + torch.randn_like(x))
    x = torch.ones(100, device="xla")
    torch.manual_seed(5)
    first = f(x).cpu()
    second = f(x).cpu()
    torch.manual_seed(5)
    assert torch.equal(f(x).cpu(), first)
    assert not torch.equal(first, second)


def test_factories_and_constants():
    table = torch.randn(100, device="xla")

    def f(x):
        return x + torch.arange(100, device=x.device) + torch.tensor([1.0], device=x.device) + table

    actual = compiled(f)(torch.ones(100, device="xla"))
    torch.testing.assert_close(actual.cpu(), 2 + torch.arange(100) + table.cpu())


def test_frozen_parameters_are_read_at_each_call():
    """`freeze` counts changes where the device's tensors have none: it is set aside."""
    layer = torch.nn.Linear(200, 200).to("xla").eval()
    f = torch.compile(layer, backend="openxla", options={"freeze": True})
    x = torch.randn(2, 200, device="xla")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(f(x).cpu(), layer(x).cpu(), rtol=1e-4, atol=1e-5)
            layer.weight.mul_(0.5)


def test_tensors_on_two_devices():
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=r"xla:0.*cpu|cpu.*xla:0"):
        compiled(lambda x, y: x + y)(torch.ones(3, device="xla"), torch.ones(3))


def test_an_exception_leaves_the_device_usable():
    f = compiled(lambda x: torch.linalg.inv(x))
    with pytest.raises(torch.linalg.LinAlgError):
        f(torch.zeros(3, 3, device="xla"))
    assert f(2 * torch.eye(3, device="xla")).sum().item() == 1.5


def test_what_is_returned_outlives_what_was_given():
    f = compiled(lambda x: (x + 1, x.view(-1)))
    results = [f(torch.full((64, 64), float(n), device="xla")) for n in range(20)]
    for n, (more, flat) in enumerate(results):
        assert more.cpu().eq(n + 1).all()
        assert flat.cpu().eq(n).all()


def test_results_on_the_cpu_stay_there():
    f = compiled(lambda x: ((x * 2).cpu(), torch.zeros(2), x + 1))
    copied, zeros, more = f(torch.ones(3, device="xla"))
    assert copied.device.type == zeros.device.type == "cpu"
    assert more.device.type == "xla"
    assert copied.tolist() == more.tolist() == [2, 2, 2]
    copied.add_(1)
    assert more.tolist() == [2, 2, 2]


def test_indices_on_the_host():
    """As in eager, what indexes a tensor of a device may be on the CPU."""

    def read(x, index, mask):
        return x[index] * 2, x[:, index[:2] - 1] + 1, x[mask]

    def write(x, index, mask):
        x = x.clone()
        x[index] = 5
        return x

    x = torch.arange(12.0).reshape(3, 4)
    index, mask = torch.tensor([2, 1]), torch.tensor([True, False, True])
    for f in (write, lambda *given: given[0][given[1]], lambda *given: given[0][given[2]]):
        expected, actual = f(x, index, mask), f(x.to("xla"), index, mask)
        assert actual.tolist() == expected.tolist()
        compiled_f = torch.compile(f, backend="openxla")(x.to("xla"), index, mask)
        assert compiled_f.device.type == "xla"
        assert compiled_f.tolist() == expected.tolist()
    with pytest.raises(Exception, match="several devices"):  # index[:2] - 1 is no index
        torch.compile(read, backend="openxla")(x.to("xla"), index, mask)


def test_functions_of_jax():
    """Recorded with what is around, with gradients and batches."""
    import jax.numpy as jnp

    from xla_dynamo.jax import call_jax

    def f(a, b):
        return {"sum": jnp.sin(a) + b, "both": [a * b]}

    x, y = (torch.arange(3.0, device="xla", requires_grad=True) for _ in range(2))
    found = call_jax(f, x + 0, y)
    (found["sum"] * 2 + found["both"][0]).sum().backward()
    a = torch.arange(3.0)
    assert found["sum"].device.type == "xla"
    torch.testing.assert_close(found["sum"].cpu(), a.sin() + a)
    torch.testing.assert_close(x.grad.cpu(), 2 * a.cos() + a)
    torch.testing.assert_close(y.grad.cpu(), 2 + a)
    twice = torch.func.vmap(lambda x: call_jax(f, x, x)["sum"])(x.detach())
    torch.testing.assert_close(twice.cpu(), a.sin() + a)


def test_gradients_of_gradients():
    def f(x, w):
        return (x * w).sin()

    def second(f, device):
        torch.manual_seed(0)
        x, w = (torch.randn(8).to(device).requires_grad_() for _ in range(2))
        (first,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
        return [g.cpu() for g in torch.autograd.grad(first.square().sum(), [x, w])]

    g = compiled(f)
    for _ in range(2):
        torch.testing.assert_close(second(g, "xla"), second(f, "cpu"))


def test_inputs_that_share_memory():
    """The device's tensors have no addresses: their storages tell."""

    def f(x, y):
        x.mul_(2)
        return x + y

    g = compiled(f)
    g(torch.zeros(4, device="xla"), torch.zeros(4, device="xla"))
    for count, (start, other) in ((1, (0, 2)), (1, (2, 0)), (1, (3, 3)), (0, (0, 4))):
        t, u = torch.arange(8.0), torch.arange(8.0).to("xla")
        before = metrics.counter_value("EagerOverlappingInputs") or 0
        actual = g(u[start : start + 4], u[other : other + 4])
        assert (metrics.counter_value("EagerOverlappingInputs") or 0) - before == count
        torch.testing.assert_close(actual.cpu(), f(t[start : start + 4], t[other : other + 4]))
        torch.testing.assert_close(u.cpu(), t)
