"""Losses of `train_step` that contain gradients."""

import pytest
import torch
from torch import nn

import xla_dynamo
from tests.doubled_gradient import Doubled
from tests.training_steps import eager_step
from xla_dynamo.errors import UnsupportedError


def _penalty_of_inputs(model, x):
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


def _penalty_of_parameters(model, x):
    y = model(x).square().mean()
    grads = torch.autograd.grad(y, list(model.parameters()), create_graph=True)
    return y + 0.1 * sum(g.square().sum() for g in grads)


def _penalty_by_torch_func(model, x):
    weights = dict(model.named_parameters())
    slope = torch.func.grad(lambda x: torch.func.functional_call(model, weights, (x,)).sum())(x)
    return slope.square().sum()


@pytest.mark.parametrize(
    "loss_fn", [_penalty_of_inputs, _penalty_of_parameters, _penalty_by_torch_func]
)
def test_a_whole_training_step_with_a_penalty(loss_fn):
    found = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        step = xla_dynamo.train_step(model, loss_fn, optimizer) if compiles else None
        for _ in range(2):
            x = torch.randn(6, 3, dtype=torch.float64)
            loss = step(x) if step else eager_step(model, optimizer, x, loss_fn=loss_fn)
            found.append([loss, *(p.detach().clone() for p in model.parameters())])
    torch.testing.assert_close(found[2:], found[:2])
    assert not loss.requires_grad


def test_a_penalty_on_the_users_own_backward_in_a_training_step_is_an_error():
    model = nn.Linear(3, 1)

    def loss_fn(model, x):
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(Doubled.apply(model(x)).sum(), x, create_graph=True)
        return slope.square().sum()

    step = xla_dynamo.train_step(model, loss_fn, torch.optim.SGD(model.parameters(), 0.01))
    with pytest.raises(UnsupportedError, match=r"user's own backward(.|\n)*Doubled.apply"):
        step(torch.randn(6, 3))
