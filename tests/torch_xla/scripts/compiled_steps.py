"""Steps by torch_xla.compile, torch_xla.step and torch.compile, in eager mode and in bfloat16."""

import copy

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import nn, optim
from torch_xla.amp import autocast, syncfree

torch.manual_seed(0)
device = torch_xla.device()
reference = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))
x, y = torch.randn(6, 1, 8, 8), torch.randint(0, 10, (6,))
loss_fn = nn.CrossEntropyLoss()
STEPS = 3


def sgd(parameters):
    return optim.SGD(parameters, lr=0.1, momentum=0.9)


def wanted(dtype=torch.float32):
    model, losses = copy.deepcopy(reference), []
    optimizer = sgd(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_step_context(model, optimizer, x, y):
    with torch_xla.step():
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    return loss


def by_dynamo(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = torch.compile(lambda: loss_fn(model(x), y), backend="openxla")()
    loss.backward()
    optimizer.step()
    return loss


def by_compile(model, optimizer, x, y):
    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return torch_xla.compile(step, full_graph=True, name="step")(x, y)


def by_autocast(model, optimizer, x, y):
    optimizer.zero_grad()
    with autocast(torch_xla.device(), dtype=torch.bfloat16):
        output = model(x)
        loss = loss_fn(output, y)
    assert output.dtype == torch.bfloat16
    loss.backward()
    xm.optimizer_step(optimizer)
    return loss


def losses_of(train, make=sgd):
    model = copy.deepcopy(reference).to(device)
    optimizer = make(model.parameters())
    return [train(model, optimizer, x.to(device), y.to(device)).item() for _ in range(STEPS)]


@torch_xla.compile(full_graph=True)
def breaks(value):
    return value + 1 if value.sum() > 0 else value - 1


@torch_xla.compile(max_different_graphs=1)
def doubled(value):
    return value * 2


def raises(function, *args):
    try:
        function(*args)
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    plain = wanted()
    for train in (by_step_context, by_dynamo):
        torch.testing.assert_close(losses_of(train), plain, atol=1e-4, rtol=1e-4)
    model = torch.compile(copy.deepcopy(reference).to(device).eval(), backend="openxla")
    with torch.no_grad():
        torch.testing.assert_close(model(x.to(device)).cpu(), reference(x), atol=1e-4, rtol=1e-4)

    torch_xla.experimental.eager_mode(True)
    torch.testing.assert_close(losses_of(by_compile), plain, atol=1e-4, rtol=1e-4)
    assert raises(breaks, torch.ones(2, device=device))
    doubled(torch.ones(2, device=device))
    assert raises(doubled, torch.ones(3, device=device))
    torch_xla.experimental.eager_mode(False)

    make = lambda parameters: syncfree.SGD(parameters, lr=0.1, momentum=0.9)  # noqa: E731
    narrow = losses_of(by_autocast, make)
    torch.testing.assert_close(narrow, wanted(torch.bfloat16), atol=0.03, rtol=0.03)
    print("ended")
