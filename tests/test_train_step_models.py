"""Models in `train_step`: tied, unused and frozen parameters, recurrent layers."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim

import xla_dynamo
from tests.compiling import compiled
from tests.training_steps import (
    OPTIMIZERS,
    STEPS,
    assert_trains_as_eager,
    batches,
    loss_fn,
    perceptron,
    sgd,
)
from xla_dynamo.errors import UnsupportedOperator


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


class Recurrent(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(2, 4, batch_first=True, **settings), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.lstm(x.unflatten(1, (3, 2)))[0][:, -1])


@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}])
def test_recurrent_layers(settings):
    def make():
        model = Recurrent(**settings).double()
        model.head = nn.Linear(4 * (1 + model.lstm.bidirectional), 3).double()
        return model

    assert_trains_as_eager(make, OPTIMIZERS["adamw"], batches(3))


@pytest.mark.parametrize("projected", [0, 2])
def test_float32_recurrent_layers_have_their_gradients(projected):
    """Torch takes these apart into layers of oneDNN, which have a gradient of their own."""
    torch.manual_seed(0)
    lstm, x = nn.LSTM(3, 4, num_layers=2, proj_size=projected), torch.randn(5, 2, 3)
    step = xla_dynamo.train_step(
        lstm, lambda lstm, x: lstm(x)[0].square().mean(), optim.SGD(lstm.parameters(), lr=1.0)
    )

    def gradients(model):
        lstm.zero_grad()
        model(x)[0].square().mean().backward()
        return {name: p.grad for name, p in lstm.named_parameters()}

    expected = gradients(lstm)
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(gradients(compiled(lstm)), expected)
    before = {name: p.detach().clone() for name, p in lstm.named_parameters()}
    step(x)
    changes = {name: before[name] - p.detach() for name, p in lstm.named_parameters()}
    torch.testing.assert_close(changes, expected, rtol=1e-4, atol=1e-6)


def test_dropout_between_recurrent_layers_is_refused():
    """Torch's decomposition would leave it out."""
    model = Recurrent(num_layers=2, dropout=0.5).double()
    step = xla_dynamo.train_step(model, loss_fn, sgd(model.parameters()))
    (batch,) = batches(1)
    with pytest.raises(UnsupportedOperator, match="dropout"):
        step(*batch)
