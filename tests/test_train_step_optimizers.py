"""`train_step` with torch's optimizers, and with those that people write; and those it refuses."""

import copy

import pytest
import torch
from torch import optim

import xla_dynamo
from tests.training_steps import (
    OPTIMIZERS,
    assert_same_state,
    assert_trains_as_eager,
    batches,
    eager_step,
    loss_fn,
    perceptron,
    sgd,
)
from xla_dynamo.errors import UnsupportedError
from xla_dynamo.runtime import metrics


@pytest.mark.every(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    # ASGD keeps its step sizes in float32. RAdam leaves its warm-up at the sixth step.
    tolerance = {"rtol": 1e-6, "atol": 1e-7} if name == "asgd" else {}
    assert_trains_as_eager(perceptron, OPTIMIZERS[name], batches(8), **tolerance)


def test_several_parameter_groups():
    def make(params):
        first, *rest = params
        return optim.AdamW([{"params": [first], "lr": 0.1, "weight_decay": 0}, {"params": rest}])

    assert_trains_as_eager(perceptron, make, batches())


SCHEDULES = {
    "cosine": lambda o: optim.lr_scheduler.CosineAnnealingLR(o, 20),
    "lambda": lambda o: optim.lr_scheduler.LambdaLR(o, lambda i: 1 / (i + 1)),
    "one cycle": lambda o: optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "cyclic": lambda o: optim.lr_scheduler.CyclicLR(o, 1e-3, 0.1, step_size_up=4),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["sgd-nesterov", "adamw"])
def test_schedules_do_not_recompile(name, schedule):
    model, reference = perceptron(), perceptron()
    pairs = []
    for m in (model, reference):
        optimizer = OPTIMIZERS[name](m.parameters())
        pairs.append((optimizer, SCHEDULES[schedule](optimizer)))
    (optimizer, scheduler), (reference_optimizer, reference_scheduler) = pairs
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    metrics.clear_all()
    for batch in batches(12):
        eager_step(reference, reference_optimizer, *batch)
        reference_scheduler.step()
        step(*batch)
        scheduler.step()
    # A schedule of the momentum is noticed when it first changes.
    assert metrics.counter_value("UncachedCompile") <= (
        1 if schedule in ("cosine", "lambda") else 2
    )
    assert_same_state(model, optimizer, reference, reference_optimizer)


class Counting(optim.SGD):
    """Keeps a count in a Python number, as many hand-written optimizers do."""

    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            self.state[p]["count"] = self.state[p].get("count", 0) + 1
        super().step(closure)


class Schedule(optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        self.param_groups[0]["weight_decay"] += 0.1


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda p: optim.LBFGS(p), "LBFGS"),
        (lambda p: optim.SparseAdam(p), "SparseAdam"),
        (lambda p: Counting(p, lr=0.1), "'count'"),
        (lambda p: Schedule(p, lr=0.1), "'weight_decay'"),
    ],
)
def test_optimizers_that_cannot_be_traced(make, what):
    model = perceptron()
    (batch,) = batches(1)
    with pytest.raises(UnsupportedError, match=what):
        xla_dynamo.train_step(model, loss_fn, make(model.parameters()))(*batch)


def test_optimizer_hooks_are_refused():
    model = perceptron()
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="hooks"):
        xla_dynamo.train_step(model, loss_fn, optimizer)


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
