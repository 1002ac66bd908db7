"""A small model, its batches and its training step in eager torch, to compare `train_step` with."""

import functools

import torch
import torch.nn.functional as F
from torch import nn, optim

import xla_dynamo

STEPS = 5


def loss_fn(model, x, y):
    """Cross entropy of what a model makes of a batch."""
    return F.cross_entropy(model(x), y)


def perceptron():
    """A model in float64, of the same weights at each call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).double()


def convolutional():
    """A model with batch norm in float64, of the same weights at each call."""
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(4 * 4, 3)).double()


def batches(count=STEPS, shape=(6,), size=8, seed=1):
    """Inputs and labels, the same ones at each call with a seed."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        x = torch.randn(size, *shape, generator=generator, dtype=torch.float64)
        yield x, torch.randint(0, 3, (size,), generator=generator)


def eager_step(model, optimizer, *batch, loss_fn=loss_fn, clip=None):
    """The training step in eager torch; its loss."""
    optimizer.zero_grad()
    loss = loss_fn(model, *batch)
    loss.backward()
    if clip is not None:
        clip(model.parameters())
    optimizer.step()
    return loss.detach()


def tensors_of(model, optimizer):
    """Parameters, buffers, and the optimizer's state."""
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    return [*model.parameters(), *model.buffers(), *state]


def assert_same_state(model, optimizer, reference, reference_optimizer, **tolerance):
    """Compare the state dictionaries of models and optimizers."""
    tolerance = tolerance or {"rtol": 1e-7, "atol": 1e-9}
    pairs = zip(reference.state_dict().items(), model.state_dict().values(), strict=True)
    for (name, expected), actual in pairs:
        torch.testing.assert_close(actual, expected, **tolerance, msg=lambda m, n=name: f"{n}: {m}")
    expected, actual = reference_optimizer.state_dict(), optimizer.state_dict()
    assert actual["param_groups"] == expected["param_groups"]
    torch.testing.assert_close(actual["state"], expected["state"], **tolerance)


def assert_trains_as_eager(make, make_optimizer, data, loss_fn=loss_fn, **tolerance):
    """Compare each loss of a `train_step` with eager's, and the state after each step."""
    tolerance = tolerance or {"rtol": 1e-7, "atol": 1e-9}
    model, reference = make(), make()
    optimizer = make_optimizer(model.parameters())
    reference_optimizer = make_optimizer(reference.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    for batch in data:
        expected = eager_step(reference, reference_optimizer, *batch, loss_fn=loss_fn)
        torch.testing.assert_close(step(*batch), expected, **tolerance)
        assert_same_state(model, optimizer, reference, reference_optimizer, **tolerance)


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


def sgd(params):
    """An optimizer that has a state."""
    return optim.SGD(params, lr=0.1, momentum=0.9)


CLIPPING = {
    "norm": functools.partial(nn.utils.clip_grad_norm_, max_norm=0.1),
    "value": functools.partial(nn.utils.clip_grad_value_, clip_value=0.01),
}


def trained(count=3):
    """A model after some steps, its optimizer, and the step."""
    model = perceptron()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = xla_dynamo.train_step(model, loss_fn, optimizer)
    for batch in batches(count):
        step(*batch)
    return model, optimizer, step
