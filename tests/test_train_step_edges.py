"""What a training step must not lose, and what it must refuse: hard cases of train_step."""

import copy
import functools
import gc
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import xla_dynamo
from tests.test_train_step import (
    OPTIMIZERS,
    assert_same,
    assert_trains_as_eager,
    batches,
    eager_step,
    loss_fn,
    perceptron,
)
from xla_dynamo.errors import OptionError, UnsupportedError, UnsupportedOperator
from xla_dynamo.runtime import metrics


def sgd(params):
    return optim.SGD(params, lr=0.1, momentum=0.9)


# --- accumulation ------------------------------------------------------------------------------


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
        assert_same(model, optimizer, reference, reference_optimizer)


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
    assert_same(model, optimizer, reference, reference_optimizer)


def test_gradients_from_elsewhere_are_cleared_as_zero_grad_does():
    model = perceptron()
    step = xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()))
    (batch,) = batches(1)
    loss_fn(model, *batch).backward()
    step(*batch)
    assert all(p.grad is None for p in model.parameters())


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


# --- optimizers that people write --------------------------------------------------------------


class Written(optim.Optimizer):
    """The frame of an optimizer: `change(state, p)` does the step."""

    def __init__(self, params, change, **attributes):
        super().__init__(params, {"lr": 0.1})
        self.change = change
        vars(self).update(attributes)

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.change(self, self.state[p], p)


def exchange(optimizer, state, p):
    state.setdefault("old", torch.zeros_like(p))
    state.setdefault("new", torch.zeros_like(p))
    state["old"], state["new"] = state["new"], p.grad.clone()
    p.sub_(0.1 * state["new"] + 0.05 * state["old"])


def tagged(optimizer, state, p):
    p.sub_(p.grad * getattr(p, "scale", 0.1))


def counting(optimizer, state, p):
    optimizer.count += 1
    p.sub_(p.grad * (0.1 * optimizer.count))


@pytest.mark.parametrize(
    ("change", "attributes"),
    [
        (exchange, {}),
        (tagged, {}),
        (counting, {"count": torch.zeros((), dtype=torch.float64)}),
    ],
)
def test_written_optimizers(change, attributes):
    def make_optimizer(params):
        params = list(params)
        params[0].scale = 0.5
        return Written(params, change, **copy.deepcopy(attributes))

    model, reference = perceptron(), perceptron()
    optimizer = make_optimizer(model.parameters())
    reference_optimizer = make_optimizer(reference.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    for batch in batches():
        step(*batch)
        eager_step(reference, reference_optimizer, *batch)
        expected = list(reference.parameters())
        torch.testing.assert_close(list(model.parameters()), expected, rtol=1e-7, atol=1e-9)


class Extended(optim.AdamW):
    """Makes its own state where there is none yet."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                if len(self.state[p]) == 0:
                    self.state[p]["mean"] = torch.zeros_like(p)
                self.state[p]["mean"].lerp_(p.grad, 0.1)
                p.sub_(0.1 * self.state[p]["mean"])


def test_a_subclass_with_a_state_of_its_own():
    assert_trains_as_eager(perceptron, Extended, batches(4))


def assigns_data(optimizer, state, p):
    p.data = p.data - 0.1 * p.grad


def python_count(optimizer, state, p):
    optimizer.calls += 1


def python_list(optimizer, state, p):
    optimizer.calls.append(1)


def other_state(optimizer, state, p):
    optimizer.state["all"]["calls"] = 1


def forgets(optimizer, state, p):
    state.pop("kept", None)


def reads(optimizer, state, p):
    p.sub_(p.grad * (0.1 if float(p.grad.norm()) > 1 else 0.2))


@pytest.mark.parametrize(
    ("change", "attributes", "what"),
    [
        (assigns_data, {}, "data"),
        (python_count, {"calls": 0}, "self.calls"),
        (python_list, {"calls": []}, "self.calls"),
        (other_state, {}, "'all'"),
        (forgets, {}, "'kept'"),
        (reads, {}, "decides on the value"),
    ],
)
def test_refused_optimizers(change, attributes, what):
    model = perceptron()
    optimizer = Written(model.parameters(), change, **attributes)
    for p in model.parameters():
        optimizer.state[p]["kept"] = torch.zeros(())
    before = copy.deepcopy(model.state_dict())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    (batch,) = batches(1)
    with pytest.raises(UnsupportedError, match=what):
        step(*batch)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)


class Lookahead(optim.Optimizer):
    def __init__(self, params):
        self.base = optim.SGD(params, lr=0.1)
        super().__init__(self.base.param_groups, {})

    def step(self, closure=None):
        self.base.step()


def test_optimizers_of_optimizers_and_replaced_steps_are_refused():
    model = perceptron()
    with pytest.raises(UnsupportedError, match="another optimizer"):
        xla_dynamo.train_step(model, loss_fn, Lookahead(model.parameters()))
    optimizer = sgd(model.parameters())
    optimizer.step = lambda: None
    with pytest.raises(UnsupportedError, match="replaced"):
        xla_dynamo.train_step(model, loss_fn, optimizer)


def test_adafactor_is_refused():
    model = perceptron()
    step = xla_dynamo.train_step(model, loss_fn, optim.Adafactor(model.parameters()))
    (batch,) = batches(1)
    with pytest.raises(UnsupportedError, match="Adafactor"):
        step(*batch)


@pytest.mark.parametrize("kind", ["gradient", "accumulated", "optimizer", "global"])
def test_hooks_registered_later_are_refused(kind):
    model = perceptron()
    optimizer = sgd(model.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    (batch,) = batches(1)
    step(*batch)
    weight = model[0].weight
    handle = {
        "gradient": lambda: weight.register_hook(lambda g: 2 * g),
        "accumulated": lambda: weight.register_post_accumulate_grad_hook(lambda p: None),
        "optimizer": lambda: optimizer.register_step_pre_hook(lambda *_: None),
        "global": lambda: (
            optim.optimizer.register_optimizer_step_pre_hook(lambda *_: None)
            if hasattr(optim, "optimizer")
            else torch.optim.Optimizer.__init__.__globals__["register_optimizer_step_pre_hook"](
                lambda *_: None
            )
        ),
    }[kind]()
    with pytest.raises(UnsupportedError, match="hooks"):
        step(*batch)
    handle.remove()
    step(*batch)


# --- settings that change ----------------------------------------------------------------------


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
    assert_same(model, optimizer, reference, reference_optimizer)


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


def test_betas_in_a_list():
    model, reference = perceptron(), perceptron()
    pairs = [(m, optim.AdamW(m.parameters(), lr=0.01)) for m in (model, reference)]
    for _, optimizer in pairs:
        optimizer.param_groups[0]["betas"] = [0.9, 0.99]
    step = xla_dynamo.train_step(model, loss_fn, pairs[0][1])
    for index, batch in enumerate(batches(4)):
        for _, optimizer in pairs:
            optimizer.param_groups[0]["betas"][0] = 0.9 - index / 10
        step(*batch)
        eager_step(reference, pairs[1][1], *batch)
    assert_same(model, pairs[0][1], reference, pairs[1][1])


def test_a_number_nobody_reads_does_not_recompile():
    model = perceptron()
    optimizer = sgd(model.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    metrics.clear_all()
    for index, batch in enumerate(batches(6)):
        optimizer.param_groups[0]["epoch"] = index
        step(*batch)
    assert metrics.counter_value("UncachedCompile") <= 2


def test_no_more_executables_are_kept_than_asked_for():
    model = perceptron()
    options = {"max_executables": 2}
    step = xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()), options=options)
    for size in (8, 7, 6, 5):
        for batch in batches(1, size=size):
            step(*batch)
    metrics.clear_all()
    for size in (5, 6, 5, 7):
        for batch in batches(1, size=size):
            step(*batch)
    assert metrics.counter_value("UncachedCompile") == 1


# --- threads -----------------------------------------------------------------------------------


def test_first_calls_from_several_threads():
    """Each thread's step on its own, and all on one: none is lost, none fails."""
    model, reference = perceptron(), perceptron()
    step = xla_dynamo.train_step(model, loss_fn, optim.SGD(model.parameters(), lr=0.1))
    data = list(batches(1)) * 4
    failures = []

    def run(batch):
        try:
            step(*batch)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(batch,)) for batch in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    optimizer = optim.SGD(reference.parameters(), lr=0.1)
    for batch in data:
        eager_step(reference, optimizer, *batch)
    torch.testing.assert_close(
        dict(model.state_dict()), dict(reference.state_dict()), rtol=1e-7, atol=1e-9
    )


# --- models ------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(2, 4, batch_first=True, **settings), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.lstm(x.unflatten(1, (3, 2)))[0][:, -1])


@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}])
def test_recurrent_layers(settings):
    def make():
        model = Recurrent(**settings).double()
        model.head = nn.Linear(4 * (1 + model.lstm.bidirectional), 3).double()
        return model

    assert_trains_as_eager(make, OPTIMIZERS["adamw"], batches(3))


@pytest.mark.parametrize("projected", [0, 2])
def test_float32_recurrent_layers_have_their_gradients(projected):
    """Torch takes these apart into layers of oneDNN, which have a gradient of their own."""
    torch.manual_seed(0)
    lstm, x = nn.LSTM(3, 4, num_layers=2, proj_size=projected), torch.randn(5, 2, 3)
    step = xla_dynamo.train_step(
        lstm, lambda lstm, x: lstm(x)[0].square().mean(), optim.SGD(lstm.parameters(), lr=1.0)
    )

    def gradients(model):
        lstm.zero_grad()
        model(x)[0].square().mean().backward()
        return {name: p.grad for name, p in lstm.named_parameters()}

    expected = gradients(lstm)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(gradients(torch.compile(lstm, backend="openxla")), expected)
    before = {name: p.detach().clone() for name, p in lstm.named_parameters()}
    step(x)
    changes = {name: before[name] - p.detach() for name, p in lstm.named_parameters()}
    torch.testing.assert_close(changes, expected, rtol=1e-4, atol=1e-6)


def test_dropout_between_recurrent_layers_is_refused():
    """Torch's decomposition would leave it out."""
    model = Recurrent(num_layers=2, dropout=0.5).double()
    step = xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()))
    (batch,) = batches(1)
    with pytest.raises(UnsupportedOperator, match="dropout"):
        step(*batch)


def test_a_checkpointed_region_with_dropout():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1000))

        def forward(self):
            return checkpoint(lambda w: F.dropout(w, 0.5), self.weight, use_reentrant=False)

    def total(model):
        dropped = model()
        return dropped.sum(), dropped

    model = Dropping()
    step = xla_dynamo.train_step(model, total, optim.SGD(model.parameters(), lr=1.0))
    _, dropped = step()
    assert torch.equal(1 - model.weight.detach(), dropped)


# --- clear errors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returned",
    [
        lambda m, x, y: None,
        lambda m, x, y: {"loss": m(x).sum()},
        lambda m, x, y: 3,
        lambda m, x, y: (),
    ],
)
def test_what_is_no_loss(returned):
    model = perceptron()
    step = xla_dynamo.train_step(model, returned, sgd(model.parameters()))
    (batch,) = batches(1)
    with pytest.raises(UnsupportedError, match="must return the loss"):
        step(*batch)


def test_wrong_arguments():
    model = perceptron()
    with pytest.raises(OptionError, match="fallbak"):
        xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()), options={"fallbak": 1})
    other = AveragedModel(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="average="):
        xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()), average=other)
    stranger = xla_dynamo.train_step(model, loss_fn, sgd(nn.Linear(2, 2).parameters()))
    (batch,) = batches(1)
    with pytest.raises(UnsupportedError, match="none of the parameters"):
        stranger(*batch)
    with pytest.raises(TypeError, match="belongs to its model"):
        copy.deepcopy(stranger)


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
