"""What others do to the optimizer between steps is seen: loading, clearing, other settings."""

import copy
import io

import torch
from torch import optim

import xla_dynamo
from tests.training_steps import (
    OPTIMIZERS,
    assert_same_state,
    batches,
    eager_step,
    loss_fn,
    perceptron,
    sgd,
    trained,
)
from xla_dynamo.runtime import metrics


def saved_to_file(model, optimizer):
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
    reference, reference_optimizer = resumed(saved_to_file(model, optimizer))
    for batch in batches(seed=2):
        step(*batch)
        eager_step(reference, reference_optimizer, *batch)
    assert_same_state(model, optimizer, reference, reference_optimizer)
    back, back_optimizer = resumed(saved_to_file(reference, reference_optimizer))
    step_back = xla_dynamo.train_step(back, loss_fn, back_optimizer)
    for batch in batches(seed=3):
        step_back(*batch)
        eager_step(reference, reference_optimizer, *batch)
    assert_same_state(back, back_optimizer, reference, reference_optimizer)


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
    assert_same_state(model, optimizer, reference, reference_optimizer)


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
    assert_same_state(model, optimizer, reference, reference_optimizer)


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
    assert_same_state(model, pairs[0][1], reference, pairs[1][1])


def test_a_number_nobody_reads_does_not_recompile():
    model = perceptron()
    optimizer = sgd(model.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    metrics.clear_all()
    for index, batch in enumerate(batches(6)):
        optimizer.param_groups[0]["epoch"] = index
        step(*batch)
    assert metrics.counter_value("UncachedCompile") <= 2
