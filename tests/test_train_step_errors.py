"""Errors of `train_step`: losses, arguments and steps that fail."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel

import xla_dynamo
from tests.training_steps import batches, loss_fn, perceptron, sgd
from xla_dynamo.errors import OptionError, UnsupportedError


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
