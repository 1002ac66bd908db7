"""What `train_step` does besides: clipping, accumulation, averages of the weights, loss scaling."""

import copy
import functools
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import xla_dynamo
from tests.training_steps import (
    CLIPPING,
    assert_same_state,
    batches,
    convolutional,
    eager_step,
    loss_fn,
    perceptron,
    sgd,
)
from xla_dynamo.errors import UnsupportedError
from xla_dynamo.runtime import metrics


@pytest.mark.parametrize("kind", CLIPPING)
def test_clipping(kind):
    clip = CLIPPING[kind]
    model, reference = perceptron(), perceptron()
    optimizer, reference_optimizer = (optim.SGD(m.parameters(), lr=1) for m in (model, reference))
    step = xla_dynamo.train_step(model, loss_fn, optimizer, clip_gradients=clip)
    for batch in batches():
        step(*batch)
        eager_step(reference, reference_optimizer, *batch, clip=clip)
    assert_same_state(model, optimizer, reference, reference_optimizer)


def test_accumulation():
    model, reference = convolutional(), convolutional()
    optimizer, reference_optimizer = (
        optim.AdamW(m.parameters(), lr=1e-2) for m in (model, reference)
    )
    clip = CLIPPING["norm"]
    step = xla_dynamo.train_step(
        model, loss_fn, optimizer, accumulation_steps=3, clip_gradients=clip
    )
    metrics.clear_all()
    for index, batch in enumerate(batches(9, shape=(1, 4, 4)), 1):
        loss = loss_fn(reference, *batch)
        (loss / 3).backward()
        torch.testing.assert_close(step(*batch), loss.detach())
        if index % 3:
            for p, q in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(p.grad, q.grad)
        else:
            clip(reference.parameters())
            reference_optimizer.step()
            reference_optimizer.zero_grad()
    assert_same_state(model, optimizer, reference, reference_optimizer)
    assert metrics.counter_value("UncachedCompile") == 2  # with and without the optimizer


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x, first):
        return self.a(x) if first else self.b(x)


def test_accumulated_gradients_of_another_branch_are_used():
    model = Branches().double()
    reference = copy.deepcopy(model)
    optimizer, reference_optimizer = sgd(model.parameters()), sgd(reference.parameters())

    def branch_loss(model, x, y, first):
        return F.cross_entropy(model(x, first), y)

    step = xla_dynamo.train_step(model, branch_loss, optimizer, accumulation_steps=2)
    turns = [True, False, True, True, False, False, True, False]
    for index, (batch, first) in enumerate(zip(batches(8), turns, strict=True), 1):
        step(*batch, first)
        (branch_loss(reference, *batch, first) / 2).backward()
        if index % 2 == 0:
            reference_optimizer.step()
            reference_optimizer.zero_grad()
        assert_same_state(model, optimizer, reference, reference_optimizer)


def test_a_call_that_failed_does_not_count():
    model, reference = perceptron(), perceptron()
    optimizer, reference_optimizer = sgd(model.parameters()), sgd(reference.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer, accumulation_steps=2)
    first, second = batches(2)
    step(*first)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        step(first[0][:, :3], first[1])
    step(*second)
    for batch in (first, second):
        (loss_fn(reference, *batch) / 2).backward()
    reference_optimizer.step()
    assert_same_state(model, optimizer, reference, reference_optimizer)


def test_accumulated_gradients_are_freed_by_the_update():
    model = perceptron()
    step = xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()), accumulation_steps=2)
    for _ in range(2):
        first, second = batches(2)
        step(*first)
        gradients = [weakref.ref(p.grad.untyped_storage()) for p in model.parameters()]
        step(*second)
        assert all(p.grad is None for p in model.parameters())
        gc.collect()
        assert not [g for g in gradients if g() is not None]


AVERAGES = {
    "ema": lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)),
    "ema-avg_fn": lambda m: AveragedModel(m, avg_fn=get_ema_avg_fn(0.9)),
    "ema-buffers": lambda m: AveragedModel(
        m, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True
    ),
    "swa": AveragedModel,
}


@pytest.mark.parametrize("kind", AVERAGES)
def test_averages_of_the_weights(kind):
    model, reference = convolutional(), convolutional()
    average, reference_average = AVERAGES[kind](model), AVERAGES[kind](reference)
    optimizer, reference_optimizer = (optim.SGD(m.parameters(), lr=0.1) for m in (model, reference))
    step = xla_dynamo.train_step(model, loss_fn, optimizer, average=average)
    for batch in batches(4, shape=(1, 4, 4)):
        step(*batch)
        eager_step(reference, reference_optimizer, *batch)
        reference_average.update_parameters(reference)
        torch.testing.assert_close(
            dict(average.state_dict()), dict(reference_average.state_dict()), rtol=1e-7, atol=1e-9
        )


def test_grad_scaler_skips_what_overflows():
    model, reference = perceptron(), perceptron()
    settings = {"init_scale": 2.0**8, "growth_interval": 2}
    scaler, reference_scaler = (torch.amp.GradScaler("cpu", **settings) for _ in range(2))
    optimizer, reference_optimizer = (
        optim.AdamW(m.parameters(), lr=1e-2) for m in (model, reference)
    )
    step = xla_dynamo.train_step(
        model, loss_fn, optimizer, grad_scaler=scaler, clip_gradients=CLIPPING["norm"]
    )
    for index, (x, y) in enumerate(batches(9)):
        if index in (2, 3, 6):
            x = torch.full_like(x, torch.inf)
        step(x, y)
        reference_optimizer.zero_grad()
        reference_scaler.scale(loss_fn(reference, x, y)).backward()
        reference_scaler.unscale_(reference_optimizer)
        CLIPPING["norm"](reference.parameters())
        reference_scaler.step(reference_optimizer)
        reference_scaler.update()
        assert scaler.state_dict() == reference_scaler.state_dict()
        assert_same_state(model, optimizer, reference, reference_optimizer)


def test_a_scaler_whose_settings_change():
    model, reference = perceptron(), perceptron()
    scalers = [torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3) for _ in range(2)]
    optimizer, reference_optimizer = sgd(model.parameters()), sgd(reference.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer, grad_scaler=scalers[0])
    for index, batch in enumerate(batches(6)):
        if index == 3:
            for scaler in scalers:
                scaler.set_growth_interval(1)
        step(*batch)
        reference_optimizer.zero_grad()
        scalers[1].scale(loss_fn(reference, *batch)).backward()
        scalers[1].step(reference_optimizer)
        scalers[1].update()
    assert scalers[0].state_dict() == scalers[1].state_dict()
    assert_same_state(model, optimizer, reference, reference_optimizer)


def test_an_average_whose_formula_changes():
    model = perceptron()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    step = xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()), average=average)
    for index, batch in enumerate(batches(4)):
        expected = copy.deepcopy(average)
        step(*batch)
        expected.update_parameters(model)
        torch.testing.assert_close(dict(average.state_dict()), dict(expected.state_dict()))
        average.multi_avg_fn = get_ema_multi_avg_fn(0.5 + index / 10)


def test_clipping_that_would_be_lost_is_refused():
    def assigns(params):
        for p in params:
            p.grad.data = p.grad.data * 2

    norms = torch.zeros((), dtype=torch.float64)

    def logs(params):
        norms.add_(nn.utils.clip_grad_norm_(params, 1.0))

    def decides(params):
        nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)

    (batch,) = batches(1)
    for clip, what in ((assigns, "data"), (logs, "holds on to"), (decides, "decides")):
        model = perceptron()
        step = xla_dynamo.train_step(
            model, loss_fn, sgd(model.parameters()), clip_gradients=functools.partial(clip)
        )
        with pytest.raises(UnsupportedError, match=what):
            step(*batch)
