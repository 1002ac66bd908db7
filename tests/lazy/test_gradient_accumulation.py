"""The loop over micro-batches adds up what eager torch adds up, in one executable."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import xla_dynamo
from xla_dynamo.torch_xla.forms.gradient_accumulation import gradient_accumulation


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 20), nn.Linear(20, 5)
        self.fixed = nn.Parameter(torch.ones(5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(5))
        self.register_buffer("scale", torch.linspace(1, 2, 5))

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) * self.scale + self.fixed


def step_of(model):
    def step(x, target, count):
        return F.mse_loss(model(x), target), count + 5

    return step


def compilations():
    return xla_dynamo.metrics.counter_value("UncachedCompile")


def test_gradients_are_those_of_eager():
    steps = 3
    right, beside = Small(), torch.tensor([5, 6])
    ours = copy.deepcopy(right).to("xla")
    x, target = torch.randn(steps, 3, 10), torch.randn(steps, 3, 5)
    given = (x.to("xla"), target.to("xla"))
    for _ in range(2):  # into gradients that are there
        loss, count = gradient_accumulation(step_of(ours), given, ours, beside.to("xla"))
    total = 0.0
    for _ in range(2):
        for one, its in zip(x, target, strict=True):
            (part := step_of(right)(one, its, beside)[0] / steps).backward()
            total += part.item() / 2
    torch.testing.assert_close(loss.cpu(), torch.tensor(total))
    assert torch.equal(count.cpu(), beside + 5 * steps)
    for (name, p), q in zip(ours.named_parameters(), right.parameters(), strict=True):
        if name == "unused":
            assert not p.grad.any()
        elif name == "fixed":
            assert p.grad is None
        else:
            torch.testing.assert_close(p.grad.cpu(), q.grad)


def test_there_is_one_executable():
    model = Small().to("xla")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train():
        given = (torch.randn(4, 3, 10).to("xla"), torch.randn(4, 3, 5).to("xla"))
        loss = gradient_accumulation(lambda x, y: F.mse_loss(model(x), y), given, model)
        optimizer.step()
        optimizer.zero_grad()
        xla_dynamo.sync()
        return loss.item()

    first = train()
    train()
    before = compilations()
    assert all(train() < 10 * first for _ in range(3))
    assert compilations() == before


def test_steps_draw_their_own_numbers():
    model = Small().to("xla")
    x = torch.ones(2, 10).to("xla")

    def step(x, last):
        return model(x).sum(), torch.rand_like(last) - last

    _, drawn = gradient_accumulation(step, (x,), model, torch.zeros(100, device="xla"))
    _, again = gradient_accumulation(step, (x,), model, torch.zeros(100, device="xla"))
    assert (drawn != 0).float().mean() > 0.9
    assert not torch.equal(drawn, again)


def test_wrong_arguments_say_so():
    model = Small().to("xla")
    x = torch.randn(2, 10).to("xla")
    for given, text in (
        ((), "is empty"),
        ((3,), "element 0"),
        ((x, torch.ones(3, device="xla")), "3 steps"),
        ((torch.ones(0, 2, device="xla"),), "no tensor with elements"),
    ):
        with pytest.raises(ValueError, match=text):
            gradient_accumulation(lambda *_: None, given, model)

    def changing(x, count):
        count += 1
        return model(x).sum(), count

    with pytest.raises(AssertionError, match="writes into its inputs"):
        gradient_accumulation(changing, (x,), model, torch.zeros(1, device="xla"))
    norm = nn.BatchNorm1d(10).to("xla")
    with pytest.raises(AssertionError, match="as a batch norm does"):
        gradient_accumulation(lambda x: norm(x).sum(), (torch.randn(2, 3, 10).to("xla"),), norm)
    assert torch.equal(norm.running_mean.cpu(), torch.zeros(10))
