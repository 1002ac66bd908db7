"""The whole training step as one executable in the same memory; modes, sizes, results, threads."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.checkpoint import checkpoint

import xla_dynamo
from tests.training_steps import (
    OPTIMIZERS,
    assert_same_state,
    assert_trains_as_eager,
    batches,
    convolutional,
    eager_step,
    loss_fn,
    perceptron,
    sgd,
    tensors_of,
    trained,
)
from xla_dynamo.runtime import metrics


def test_batch_norm_and_its_statistics():
    make_optimizer = OPTIMIZERS["sgd-momentum"]
    assert_trains_as_eager(convolutional, make_optimizer, batches(shape=(1, 4, 4)))


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
    assert_same_state(model, optimizer, reference, reference_optimizer)


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


def test_gradients_from_elsewhere_are_cleared_as_zero_grad_does():
    model = perceptron()
    step = xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()))
    (batch,) = batches(1)
    loss_fn(model, *batch).backward()
    step(*batch)
    assert all(p.grad is None for p in model.parameters())


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
