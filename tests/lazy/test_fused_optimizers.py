"""Fused optimizers on the 'xla' device: the values of eager's on the CPU, and no new programs."""

import pytest
import torch

import xla_dynamo
from xla_dynamo import metrics

XLA = xla_dynamo.device()
OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.05, fused=True),
    "adam, all": lambda p: torch.optim.Adam(
        p, lr=0.05, weight_decay=0.1, amsgrad=True, maximize=True, fused=True
    ),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, fused=True),
    "sgd, all": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, dampening=0.0, nesterov=True, weight_decay=0.1, fused=True
    ),
    "sgd, dampened": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, dampening=0.2, maximize=True, fused=True
    ),
    "adagrad": lambda p: torch.optim.Adagrad(
        p, lr=0.05, lr_decay=0.1, weight_decay=0.1, fused=True
    ),
}


def model_and_batch(device):
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.to(device), torch.randn(6, 4, generator=generator).to(device)


def train(device, make, schedule=(1.0,) * 5):
    model, x = model_and_batch(device)
    optimizer = make(model.parameters())
    lr = optimizer.param_groups[0]["lr"]
    for factor in schedule:
        optimizer.param_groups[0]["lr"] = lr * factor
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        xla_dynamo.sync()
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_values_are_eagers(name):
    expected = train("cpu", OPTIMIZERS[name])
    torch.testing.assert_close(train(XLA, OPTIMIZERS[name]), expected, rtol=1e-4, atol=1e-5)


def test_a_schedule_compiles_no_further_programs():
    train(XLA, OPTIMIZERS["adam"])
    metrics.clear_all()
    schedule = [1.0, 0.5, 0.25, 0.125, 0.3]
    actual = train(XLA, OPTIMIZERS["adam"], schedule)
    assert metrics.counter_value("UncachedCompile") == 0
    expected = train("cpu", OPTIMIZERS["adam"], schedule)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_learning_rate_that_is_a_tensor():
    results = []
    for device in ("cpu", XLA):
        lr = torch.tensor(0.05, device=device)
        make = [lambda p, lr=lr: torch.optim.AdamW(p, lr=lr, fused=True),
                lambda p, lr=lr: torch.optim.SGD(p, lr=lr, fused=True)]  # fmt: skip
        results.append([train(device, one) for one in make])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["adam", "sgd, all", "adagrad"])
def test_an_infinite_gradient_under_a_scaler_changes_nothing(name):
    model, x = model_and_batch(XLA)
    optimizer = OPTIMIZERS[name](model.parameters())
    scaler = torch.amp.GradScaler("xla", init_scale=8.0)
    before = [p.detach().cpu() for p in model.parameters()]
    for factor in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((model(x) * factor).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        xla_dynamo.sync()
        after = [p.detach().cpu() for p in model.parameters()]
        same = all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        assert same == (factor != 1)
    assert scaler.get_scale() == 4.0
    expected, x = model_and_batch("cpu")
    optimizer = OPTIMIZERS[name](expected.parameters())
    expected(x).square().mean().backward()
    optimizer.step()
    if name != "sgd, all":  # the first step came before, for its momentum
        torch.testing.assert_close(after, list(expected.parameters()), rtol=1e-4, atol=1e-5)
