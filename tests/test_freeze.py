"""`options={"freeze": True}`: folded once, and anew as soon as a parameter has changed."""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn

import xla_dynamo
from xla_dynamo.execution.compiled_graph import CompiledGraph
from xla_dynamo.execution.frozen_inputs import FrozenProgram
from xla_dynamo.options import Options

FREEZE = {"freeze": True}


def frozen(model, **more):
    return torch.compile(model, backend="openxla", options={**FREEZE, **more})


@pytest.fixture
def runs(monkeypatch):
    """How often values are computed from parameters."""
    count = []
    keep = FrozenProgram._keep

    def counted(self, *args):
        count.append(self)
        keep(self, *args)

    monkeypatch.setattr(FrozenProgram, "_keep", counted)
    return count


class Scaled(nn.Module):
    """exp of a parameter, which is worth keeping, and a buffer."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5))
        self.register_buffer("offset", torch.randn(5))

    def forward(self, x):
        return x * self.weight.exp() + self.offset.sin()


def check(compiled, model, *args, **tolerance):
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), model(*args), **tolerance)


def test_values_are_computed_once(runs):
    model = Scaled()
    compiled = frozen(model)
    for _ in range(3):
        check(compiled, model, torch.randn(3, 5))
    assert len(runs) == 1


def _in_place(model):
    with torch.no_grad():
        model.weight.add_(1)


def _buffer(model):
    model.offset.mul_(2)


def _through_a_view(model):
    model.weight.detach()[1:3].zero_()


def _loaded(model):
    model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()})


def _other_memory(model):
    model.weight.data = torch.randn(5)


def _other_memory_twice(model):
    model.weight.data = torch.randn(5)
    model.weight.data = torch.randn(5)  # perhaps where the first one was


def _another_parameter(model):
    model.weight = nn.Parameter(torch.randn(5))


def _optimizer(model):
    model(torch.randn(1, 5)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()


def _fused_optimizer(model):
    model(torch.randn(1, 5)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.5, fused=True).step()


def _compiled_fused_optimizer(model):
    model(torch.randn(1, 5)).sum().backward()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, fused=True)
    torch.compile(optimizer.step, backend="openxla")()


def _wrapped_again(model):
    with torch.no_grad():
        model.weight.add_(1)
    model.weight = nn.Parameter(model.weight.data)  # the same memory, another counter
    with torch.no_grad():
        model.weight.mul_(2)


def _train_step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    step = xla_dynamo.train_step(model, lambda model, x: model(x).sum(), optimizer)
    step(torch.randn(2, 5))


def _compiled_in_place(model):
    @torch.compile(backend="openxla")
    def change(weight):
        weight.mul_(3)

    with torch.no_grad():
        change(model.weight)


@pytest.mark.parametrize(
    "change",
    [
        _in_place,
        _buffer,
        _through_a_view,
        _loaded,
        _other_memory,
        _other_memory_twice,
        _another_parameter,
        _optimizer,
        _fused_optimizer,
        _compiled_fused_optimizer,
        _wrapped_again,
        _train_step,
        _compiled_in_place,
    ],
)
def test_changes_are_noticed(runs, change):
    model, x = Scaled(), torch.randn(3, 5)
    compiled = frozen(model)
    for _ in range(3):
        check(compiled, model, x)
        change(model)
    check(compiled, model, x)
    check(compiled, model, x)
    assert len(runs) == 4


def test_changes_that_torch_does_not_count_need_refreeze(runs):
    model, x = LargeScaled(), torch.randn(3, 1, 5)
    compiled = frozen(model)
    check(compiled, model, x)
    model.weight.data.add_(1)  # the rule, as documented: not seen
    with torch.no_grad():
        assert not torch.equal(compiled(x), model(x))
    xla_dynamo.refreeze()
    check(compiled, model, x)
    assert len(runs) == 2


def test_changes_of_inference_tensors_are_seen(runs):
    with torch.inference_mode():
        model = Scaled()
        compiled, x = frozen(model), torch.randn(3, 5)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), model(x))
            model.offset.add_(1)  # of these torch counts nothing
    assert len(runs) == 3


def test_results_belong_to_the_caller():
    model, x = Scaled(), torch.randn(3, 5)

    def both(x):
        return model(x), model.weight.exp()

    compiled = frozen(both)
    with torch.no_grad():
        compiled(x)[1].zero_()
        torch.testing.assert_close(compiled(x), both(x))


def test_layers_share_a_program_but_no_values(runs):
    layers = nn.ModuleList(Scaled() for _ in range(3))
    for layer in layers:
        layer.compile(backend="openxla", options=FREEZE)
    eager = [Scaled() for _ in layers]
    for layer, twin in zip(layers, eager, strict=True):
        twin.load_state_dict(layer.state_dict())
    x = torch.randn(3, 5)
    for _ in range(2):
        for layer, twin in zip(layers, eager, strict=True):
            check(layer, twin, x)
    assert len(runs) == 3
    assert len(set(runs)) == 1


def test_sizes_share_values(runs, monkeypatch):
    graphs = []
    compile_ = CompiledGraph._compile

    def noted(self, *args):
        graphs.append(self)
        return compile_(self, *args)

    monkeypatch.setattr(CompiledGraph, "_compile", noted)
    model = Scaled()
    compiled = torch.compile(model, backend="openxla", dynamic=True, options=FREEZE)
    for n in (2, 3, 4):
        check(compiled, model, torch.randn(n, 5))
    assert len(graphs) == 3  # executables
    assert len(runs) == 1
    _in_place(model)
    for n in (2, 3, 4):
        check(compiled, model, torch.randn(n, 5))
    assert len(runs) == 2


def test_sizes_may_need_more_values():
    table = nn.Parameter(torch.randn(9, 4))

    def f(x):
        return x + table[: x.shape[0]].exp() + table.sin().sum(0)

    compiled = torch.compile(f, backend="openxla", dynamic=True, options=FREEZE)
    for n in (2, 5, 2, 7, 5):
        check(compiled, f, torch.randn(n, 4))
        with torch.no_grad():
            table.mul_(1.5)


class LargeScaled(Scaled):
    """The same with a weight that is too large to be compared bit by bit."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2000, 5))


@pytest.mark.parametrize("change", [_fused_optimizer, _compiled_fused_optimizer, _wrapped_again])
def test_changes_of_large_parameters_are_noticed(change):
    model, x = LargeScaled(), torch.randn(3, 1, 5)
    compiled = frozen(model)
    kept = []  # else the new parameter might be where the old one was
    for _ in range(3):
        check(compiled, model, x)
        kept += model.parameters()
        change(model)
    check(compiled, model, x)


def test_statistics_that_are_parameters_or_parts_of_a_buffer(runs):
    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.mean = nn.Parameter(torch.zeros(8), requires_grad=False)
            self.register_buffer("both", torch.ones(2, 8))

        def forward(self, x):
            y = self.conv(x)
            return torch.nn.functional.batch_norm(
                y, self.mean, self.both[1], training=self.training
            )

    model, x = Normalized().eval(), torch.randn(2, 3, 7, 7)
    compiled = frozen(model)
    for _ in range(2):
        check(compiled, model, x, rtol=1e-4, atol=1e-5)
        model.train()(x * 3)
        model.eval()
    check(compiled, model, x, rtol=1e-4, atol=1e-5)
    assert len(runs) == 3


def test_what_a_graph_changes_is_not_frozen(runs):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x * self.calls.exp()

    model, twin = Counts(), Counts()
    compiled, x = frozen(model), torch.randn(3)
    for _ in range(3):
        check(compiled, twin, x)
    assert model.calls.item() == 3
    assert not runs


def test_gradients_are_not_frozen(runs):
    model, x = Scaled(), torch.randn(3, 5)
    compiled = frozen(model)
    for _ in range(2):
        expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        found = torch.autograd.grad(compiled(x).sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected)
        _in_place(model)
    assert not runs


def test_operators_in_eager_torch_between_frozen_parts():
    model, x = Scaled(), torch.randn(6, 5)

    def f(x):
        y = model(x)
        return (y[(y > 0).nonzero()[:, 0]] * model.weight.exp()).sum(0)

    check(frozen(f), f, x)
    _in_place(model)
    check(frozen(f), f, x)


def test_values_go_with_the_parameters(runs):
    model = Scaled()
    compiled = frozen(model)
    check(compiled, model, torch.randn(3, 5))
    (program,) = runs
    assert len(program._known) == 1
    first = weakref.ref(model.weight)
    model.weight = nn.Parameter(torch.randn(5))
    gc.collect()
    assert first() is None
    assert not program._known
    check(compiled, model, torch.randn(3, 5))
    assert len(program._known) == 1


def test_threads():
    model, x = Scaled(), torch.randn(3, 5)
    compiled = frozen(model)
    with torch.no_grad():
        compiled(x)
    wrong = []

    def call():
        with torch.no_grad():
            wrong.extend(not torch.allclose(compiled(x), model(x)) for _ in range(50))

    for _ in range(3):
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _in_place(model)
    assert len(wrong) == 600
    assert not any(wrong)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_the_option_is_a_boolean(value):
    with pytest.raises(xla_dynamo.OptionError, match="freeze"):
        Options.parse({"freeze": value})


# --- batch norm ----------------------------------------------------------------------------------

CONVOLUTIONS = {
    "plain": (nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)),
    "without a bias": (nn.Conv2d(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8)),
    "grouped": (nn.Conv2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4)),
    "in one dimension": (nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8)),
    "in three": (nn.Conv3d(3, 8, 2), nn.BatchNorm3d(8)),
    "transposed": (nn.ConvTranspose2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)),
    "transposed, grouped": (nn.ConvTranspose2d(4, 8, 3, groups=2), nn.BatchNorm2d(8)),
    "not affine": (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)),
    "of batch statistics": (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8, track_running_stats=False),
    ),
}


def normalized(name):
    conv, norm = CONVOLUTIONS[name]
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            if tensor.is_floating_point():
                tensor.uniform_(0.5, 2)
    channels = conv.in_channels
    image = torch.randn(2, channels, *[7] * (conv.weight.ndim - 2))
    return nn.Sequential(conv, norm, nn.ReLU()).eval(), image


def norms_in(model, image, **context):
    """How many batch norms are left in what was compiled."""
    explained = xla_dynamo.explain(model, options=FREEZE)
    with torch.no_grad():
        report = explained(image)
    return sum("batch_norm" in o.name for graph in report.graphs for o in graph.operators)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_batch_norms_are_folded(name):
    model, image = normalized(name)
    check(frozen(model), model, image, rtol=1e-4, atol=1e-5)
    left = name in ("of batch statistics", "transposed, grouped")
    assert norms_in(model, image) == left


@pytest.mark.parametrize("name", ["plain", "without a bias"])
def test_batch_norms_are_folded_under_autocast(name):
    model, image = normalized(name)
    exact = model.double()(image.double())
    model.float()
    compiled = frozen(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found, eager = compiled(image), model(image)
    assert found.dtype is eager.dtype
    assert (found - exact).abs().max() <= 2 * (eager - exact).abs().max()


def test_a_convolution_that_others_read_is_not_folded():
    model, image = normalized("plain")
    conv, norm, _ = model

    def f(x):
        y = conv(x)
        return norm(y) + y

    check(frozen(f), f, image, rtol=1e-4, atol=1e-5)
    assert norms_in(f, image) == 1


def test_running_statistics_that_change_are_noticed():
    model, image = normalized("plain")
    compiled = frozen(model)
    check(compiled, model, image, rtol=1e-4, atol=1e-5)
    model.train()(image)  # in eager torch
    model.eval()
    check(compiled, model, image, rtol=1e-4, atol=1e-5)


def test_many_running_statistics_that_change_are_noticed():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5000), torch.nn.BatchNorm1d(5000)).eval()
    compiled, x = frozen(model), torch.randn(8, 4)
    check(compiled, model, x, rtol=1e-4, atol=1e-5)
    model.train()(x * 3 + 1)
    model.eval()
    check(compiled, model, x, rtol=1e-4, atol=1e-5)


def test_not_a_number_comes_through_a_folded_batch_norm():
    model, image = normalized("plain")
    image[0, 0, 0, 0] = torch.nan
    image[1, 0, 3, 3] = torch.inf
    check(frozen(model), model, image, rtol=1e-4, atol=1e-5, equal_nan=True)
