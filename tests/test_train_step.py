"""The whole training step as one executable, against the same step in eager."""

import copy
import functools
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

import xla_dynamo
from xla_dynamo.errors import UnsupportedError
from xla_dynamo.runtime import metrics

STEPS = 5


def loss_fn(model, x, y):
    return F.cross_entropy(model(x), y)


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).double()


def convolutional():
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(4 * 4, 3)).double()


def batches(count=STEPS, shape=(6,), size=8, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
        yield x, torch.randint(0, 3, (size,), generator=generator)


def eager_step(model, optimizer, *batch, loss_fn=loss_fn, clip=None):
    optimizer.zero_grad()
    loss = loss_fn(model, *batch)
    loss.backward()
    if clip is not None:
        clip(model.parameters())
    optimizer.step()
    return loss.detach()


def tensors_of(model, optimizer):
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    return [*model.parameters(), *model.buffers(), *state]


def assert_same(model, optimizer, reference, reference_optimizer, **tolerance):
    tolerance = tolerance or {"rtol": 1e-7, "atol": 1e-9}
    pairs = zip(reference.state_dict().items(), model.state_dict().values(), strict=True)
    for (name, expected), actual in pairs:
        torch.testing.assert_close(actual, expected, **tolerance, msg=lambda m, n=name: f"{n}: {m}")
    expected, actual = reference_optimizer.state_dict(), optimizer.state_dict()
    assert actual["param_groups"] == expected["param_groups"]
    torch.testing.assert_close(actual["state"], expected["state"], **tolerance)


def assert_trains_as_eager(make, make_optimizer, data, loss_fn=loss_fn, **tolerance):
    tolerance = tolerance or {"rtol": 1e-7, "atol": 1e-9}
    model, reference = make(), make()
    optimizer = make_optimizer(model.parameters())
    reference_optimizer = make_optimizer(reference.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    for batch in data:
        expected = eager_step(reference, reference_optimizer, *batch, loss_fn=loss_fn)
        torch.testing.assert_close(step(*batch), expected, **tolerance)
        assert_same(model, optimizer, reference, reference_optimizer, **tolerance)


OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "sgd-momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "sgd-nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd-dampening": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.2, maximize=True),
    "adam": lambda p: optim.Adam(p, lr=1e-2, weight_decay=1e-2),
    "adam-amsgrad": lambda p: optim.Adam(p, lr=1e-2, amsgrad=True),
    "adam-foreach": lambda p: optim.Adam(p, lr=1e-2, foreach=True),
    "adam-fused": lambda p: optim.Adam(p, lr=1e-2, fused=True),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
    "adamw-tensor-lr": lambda p: optim.AdamW(p, lr=torch.tensor(1e-2)),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-2, momentum=0.9, centered=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-2, lr_decay=0.1),
    "adadelta": lambda p: optim.Adadelta(p, lr=0.5),
    "adamax": lambda p: optim.Adamax(p, lr=1e-2),
    "nadam": lambda p: optim.NAdam(p, lr=1e-2),
    "radam": lambda p: optim.RAdam(p, lr=1e-2),
    "rprop": lambda p: optim.Rprop(p, lr=1e-2),
    "asgd": lambda p: optim.ASGD(p, lr=1e-2, t0=2),
}


@pytest.mark.every(2)
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


def test_batch_norm_and_its_statistics():
    make_optimizer = OPTIMIZERS["sgd-momentum"]
    assert_trains_as_eager(convolutional, make_optimizer, batches(shape=(1, 4, 4)))


# --- one executable, in place ------------------------------------------------------------------


def test_one_executable_and_the_same_memory():
    model = convolutional()
    optimizer = optim.AdamW(model.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    metrics.clear_all()
    data = list(batches(50, shape=(1, 4, 4)))
    step(*data[0])
    addresses = [t.data_ptr() for t in tensors_of(model, optimizer)]
    for batch in data:
        step(*batch)
    assert [t.data_ptr() for t in tensors_of(model, optimizer)] == addresses
    assert metrics.counter_value("UncachedCompile") == 1


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
    assert_same(model, optimizer, reference, reference_optimizer)


# --- whoever else changes the optimizer is heard -----------------------------------------------


def trained(count=3):
    model = perceptron()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    for batch in batches(count):
        step(*batch)
    return model, optimizer, step


def checkpoint(model, optimizer):
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    return file


def resumed(file):
    model = perceptron()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return model, optimizer


def test_a_checkpoint_resumes_in_eager_and_back():
    model, optimizer, step = trained()
    reference, reference_optimizer = resumed(checkpoint(model, optimizer))
    for batch in batches(seed=2):
        step(*batch)
        eager_step(reference, reference_optimizer, *batch)
    assert_same(model, optimizer, reference, reference_optimizer)
    back, back_optimizer = resumed(checkpoint(reference, reference_optimizer))
    step_back = xla_dynamo.train_step(back, loss_fn, back_optimizer)
    for batch in batches(seed=3):
        step_back(*batch)
        eager_step(reference, reference_optimizer, *batch)
    assert_same(back, back_optimizer, reference, reference_optimizer)


def test_state_loaded_between_steps_is_used_without_a_compile():
    model, optimizer, step = trained()
    saved = copy.deepcopy([model.state_dict(), optimizer.state_dict()])
    (batch,) = batches(1, seed=4)
    step(*batch)
    after = copy.deepcopy(list(model.parameters()))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    metrics.clear_all()
    step(*batch)
    torch.testing.assert_close(list(model.parameters()), after, rtol=0, atol=0)
    assert metrics.counter_value("UncachedCompile") == 0


def test_cleared_state_starts_anew():
    _, optimizer, step = trained()
    optimizer.state.clear()
    (batch,) = batches(1)
    step(*batch)
    assert {float(s["step"]) for s in optimizer.state_dict()["state"].values()} == {1.0}


def test_hyperparameters_that_are_constants_recompile():
    model, optimizer, step = trained()
    reference, reference_optimizer = copy.deepcopy(model), optim.AdamW(perceptron().parameters())
    reference_optimizer = OPTIMIZERS["adamw"](reference.parameters())
    reference_optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for o in (optimizer, reference_optimizer):
        o.param_groups[0]["weight_decay"] = 0.5
        o.param_groups[0]["maximize"] = True
    (batch,) = batches(1)
    step(*batch)
    eager_step(reference, reference_optimizer, *batch)
    assert_same(model, optimizer, reference, reference_optimizer)


def test_a_new_parameter_group():
    model, reference = perceptron(), perceptron()
    pairs = [(m, optim.Adam(m[0].parameters(), lr=1e-2)) for m in (model, reference)]
    (_, optimizer), (_, reference_optimizer) = pairs
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    for index, batch in enumerate(batches(4)):
        if index == 2:
            for m, o in pairs:
                o.add_param_group({"params": m[3].parameters(), "lr": 0.1})
        step(*batch)
        eager_step(reference, reference_optimizer, *batch)
    assert_same(model, optimizer, reference, reference_optimizer)


# --- the model ---------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 6)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, ids):
        return self.head(self.frozen(self.embed(ids)))


def test_tied_unused_and_frozen_parameters():
    def make():
        torch.manual_seed(0)
        return Tied().double()

    def language_loss(model, ids):
        return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    data = [
        (torch.randint(0, 7, (2, 5), generator=torch.Generator().manual_seed(i)),)
        for i in range(STEPS)
    ]
    assert_trains_as_eager(make, OPTIMIZERS["adamw"], data, language_loss)


def test_a_parameter_the_loss_does_not_depend_on_gets_no_state():
    def detached_loss(model, x, y):
        return F.cross_entropy(model[0](x)[:, :3] + model[3](model[0](x)).detach(), y)

    assert_trains_as_eager(perceptron, OPTIMIZERS["adamw"], batches(3), detached_loss)


def test_freezing_in_the_middle_and_eval_mode():
    model, reference = convolutional(), convolutional()
    optimizer, reference_optimizer = (
        optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, reference)
    )
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    for index, batch in enumerate(batches(6, shape=(1, 4, 4))):
        for m in (model, reference):
            m.train(index not in (2, 3))
            m[0].weight.requires_grad_(index < 4)
        step(*batch)
        eager_step(reference, reference_optimizer, *batch)
    assert_same(model, optimizer, reference, reference_optimizer)


def test_batches_of_several_sizes():
    data = [batch for size in (8, 8, 5, 3, 8) for batch in batches(1, size=size)]
    assert_trains_as_eager(perceptron, OPTIMIZERS["adamw"], data)


def test_returns_what_the_loss_function_returns():
    def with_logits(model, batch, scale):
        logits = model(batch["x"])
        return F.cross_entropy(logits, batch["y"]) * scale, {"logits": logits}

    model, reference = perceptron(), perceptron()
    step = xla_dynamo.train_step(model, with_logits, optim.SGD(model.parameters(), lr=0.1))
    ((x, y),) = batches(1)
    loss, extra = step({"x": x, "y": y}, scale=2.0)
    torch.testing.assert_close(loss, 2 * loss_fn(reference, x, y).detach())
    torch.testing.assert_close(extra["logits"], reference(x).detach())
    assert not loss.requires_grad
    assert not extra["logits"].requires_grad


def test_a_step_counts_as_a_change_in_place():
    """As in eager, a graph that was recorded before the step cannot be used after it."""
    model, _, step = trained(1)
    ((x, y),) = batches(1)
    loss = loss_fn(model, x, y)
    step(x, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_autocast_in_the_loss():
    def half_loss(model, x, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x)
        return F.cross_entropy(logits.double(), y)

    assert_trains_as_eager(
        perceptron, lambda p: optim.SGD(p, lr=0.1), batches(3), half_loss, rtol=2e-2, atol=2e-3
    )


def test_gradient_penalty():
    def penalised(model, x, y):
        loss = F.cross_entropy(model(x), y)
        (grad,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + grad.square().sum()

    data = [(x.requires_grad_(), y) for x, y in batches(3)]
    assert_trains_as_eager(perceptron, OPTIMIZERS["adamw"], data, penalised)


# --- clipping, accumulation, averages ----------------------------------------------------------

CLIPPING = {
    "norm": functools.partial(nn.utils.clip_grad_norm_, max_norm=0.1),
    "value": functools.partial(nn.utils.clip_grad_value_, clip_value=0.01),
}


@pytest.mark.parametrize("kind", CLIPPING)
def test_clipping(kind):
    clip = CLIPPING[kind]
    model, reference = perceptron(), perceptron()
    optimizer, reference_optimizer = (optim.SGD(m.parameters(), lr=1) for m in (model, reference))
    step = xla_dynamo.train_step(model, loss_fn, optimizer, clip_gradients=clip)
    for batch in batches():
        step(*batch)
        eager_step(reference, reference_optimizer, *batch, clip=clip)
    assert_same(model, optimizer, reference, reference_optimizer)


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
    assert_same(model, optimizer, reference, reference_optimizer)
    assert metrics.counter_value("UncachedCompile") == 2  # with and without the optimizer


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
        assert_same(model, optimizer, reference, reference_optimizer)


# --- random numbers ----------------------------------------------------------------------------


def test_dropout_repeats_with_the_seed_and_differs_between_steps():
    def losses():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3)).double()
        step = xla_dynamo.train_step(model, loss_fn, optim.SGD(model.parameters(), lr=0.0))
        ((x, y),) = batches(1)
        torch.manual_seed(1)
        return [float(step(x, y)) for _ in range(4)]

    first = losses()
    assert len(set(first)) == 4
    assert losses() == first


def test_backward_sees_the_mask_of_the_forward():
    weight = nn.Parameter(torch.ones(1000))

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self):
            return F.dropout(self.weight, 0.5)

    def total(model):
        dropped = model()
        return dropped.sum(), dropped

    model = Scale()
    step = xla_dynamo.train_step(model, total, optim.SGD(model.parameters(), lr=1.0))
    _, dropped = step()
    assert torch.equal(1 - weight.detach(), dropped)  # the gradient of a sum is the scaled mask


# --- errors ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"), "scalar"),
        (lambda m, x, y: m(x).argmax(), "scalar"),
        (lambda m, x, y: x.sum(), "does not depend"),
    ],
)
def test_wrong_losses(wrong, what):
    model = perceptron()
    step = xla_dynamo.train_step(model, wrong, optim.SGD(model.parameters(), lr=0.1))
    (batch,) = batches(1)
    with pytest.raises(UnsupportedError, match=what):
        step(*batch)


def test_a_failed_step_leaves_the_model_as_it_was():
    model = perceptron()
    before = copy.deepcopy(model.state_dict())
    step = xla_dynamo.train_step(model, loss_fn, optim.SGD(model.parameters(), lr=0.1))
    ((x, y),) = batches(1)
    with pytest.raises(Exception, match="same reduction dim"):
        step(x[:, :4], y)
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    step(x, y)
