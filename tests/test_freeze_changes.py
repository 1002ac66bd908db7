"""Frozen values are computed anew as soon as a parameter has changed, whoever changes it."""

import pytest
import torch
from torch import nn

import xla_dynamo
from tests.compiling import assert_matches_eager, compiled
from tests.freezing import LargeScaled, Scaled, add_one, check_inference, frozen


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
    compiled(optimizer.step, fullgraph=False)()


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
        add_one,
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
def test_changes_are_noticed(frozen_runs, change):
    model, x = Scaled(), torch.randn(3, 5)
    run = frozen(model)
    for _ in range(3):
        check_inference(run, x)
        change(model)
    check_inference(run, x)
    check_inference(run, x)
    assert len(frozen_runs) == 4


def test_changes_that_torch_does_not_count_need_refreeze(frozen_runs):
    model, x = LargeScaled(), torch.randn(3, 1, 5)
    run = frozen(model)
    check_inference(run, x)
    model.weight.data.add_(1)  # the rule, as documented: not seen
    with torch.no_grad():
        assert not torch.equal(run(x), model(x))
    xla_dynamo.refreeze()
    check_inference(run, x)
    assert len(frozen_runs) == 2


def test_changes_of_inference_tensors_are_seen(frozen_runs):
    with torch.inference_mode():
        model = Scaled()
        run, x = frozen(model), torch.randn(3, 5)
        for _ in range(3):
            assert_matches_eager(run, x)
            model.offset.add_(1)  # of these torch counts nothing
    assert len(frozen_runs) == 3


@pytest.mark.parametrize("change", [_fused_optimizer, _compiled_fused_optimizer, _wrapped_again])
def test_changes_of_large_parameters_are_noticed(change):
    model, x = LargeScaled(), torch.randn(3, 1, 5)
    run = frozen(model)
    kept = []  # else the new parameter might be where the old one was
    for _ in range(3):
        check_inference(run, x)
        kept += model.parameters()
        change(model)
    check_inference(run, x)


def test_statistics_that_are_parameters_or_parts_of_a_buffer(frozen_runs):
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
    run = frozen(model)
    for _ in range(2):
        check_inference(run, x, rtol=1e-4, atol=1e-5)
        model.train()(x * 3)
        model.eval()
    check_inference(run, x, rtol=1e-4, atol=1e-5)
    assert len(frozen_runs) == 3


def test_what_a_graph_changes_is_not_frozen(frozen_runs):
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls.add_(1)
            return x * self.calls.exp()

    model, twin = Counts(), Counts()
    run, x = frozen(model), torch.randn(3)
    for _ in range(3):
        check_inference(run, x, eager=twin)
    assert model.calls.item() == 3
    assert not frozen_runs
