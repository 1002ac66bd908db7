"""Logging inside a model stops nothing: a training step skips it, `torch.compile` breaks there."""

import functools
import logging
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch._dynamo.utils import counters

import xla_dynamo
from tests.compiling import compiled
from tests.libraries.recipes import run_recipe

logger = logging.getLogger(__name__)
adapter = logging.LoggerAdapter(logger, {})


WAYS = {
    "logger": lambda loss: logger.warning("a loss of %s in %s", loss, loss.shape),
    "level": lambda loss: logger.log(logging.ERROR, f"{loss}"),
    "patched": lambda loss: logger.warning_once("once"),
    "module": lambda loss: logging.error("a loss of %s", loss),
    "warnings": lambda loss: warnings.warn("a loss", UserWarning, stacklevel=2),
}


@pytest.fixture(autouse=True)
def a_method_patched_on_all_loggers(monkeypatch):
    """As transformers does it."""

    @functools.lru_cache(None)
    def warning_once(self, *args):
        self.warning(*args)

    monkeypatch.setattr(logging.Logger, "warning_once", warning_once, raising=False)


def settings():
    return torch._dynamo.config.ignore_logging_functions


@pytest.mark.parametrize("way", WAYS)
def test_a_training_step_skips_it(way):
    def loss_fn(model, x):
        loss = model(x).square().mean()
        WAYS[way](loss)
        return loss

    model, reference = nn.Linear(3, 2), nn.Linear(3, 2)
    reference.load_state_dict(model.state_dict())
    before = set(settings())
    step = xla_dynamo.train_step(model, loss_fn, optim.SGD(model.parameters(), lr=0.1))
    optimizer = optim.SGD(reference.parameters(), lr=0.1)
    for x in torch.randn(3, 4, 3):
        optimizer.zero_grad()
        expected = reference(x).square().mean()
        expected.backward()
        optimizer.step()
        torch.testing.assert_close(step(x), expected.detach())
    torch.testing.assert_close(model.weight, reference.weight)
    assert settings() == before  # the user's configuration is as it was


class Scaling(logging.Logger):
    """A logger with a method that computes, and an attribute that no set can hold."""

    info_once = {}  # noqa: RUF012

    def error_rate(self, x):
        return x * 3


scaling = Scaling("scaling")
OTHERS = {
    "a method that computes": lambda x: scaling.error_rate(x),
    "an adapter": lambda x: adapter.error("a loss of %s", x),
    "a level": lambda x: x * (2 if logger.isEnabledFor(logging.DEBUG) else 3),
}


@pytest.mark.parametrize("way", OTHERS)
def test_what_may_change_the_result_is_an_error_and_not_skipped(way):
    def loss_fn(model, x):
        loss = model(x).mean()
        told = OTHERS[way](loss)
        return loss if told is None else told

    model = nn.Linear(3, 2)
    step = xla_dynamo.train_step(model, loss_fn, optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="Logger"):
        step(torch.randn(4, 3))


def test_what_the_user_has_dynamo_ignore_stays_ignored():
    def tell(loss):
        raise AssertionError("not called")

    def loss_fn(model, x):
        loss = model(x).square().mean()
        tell(loss)
        logger.warning("a loss")
        return loss

    model = nn.Linear(3, 2)
    with torch._dynamo.config.patch(ignore_logging_functions={tell}):
        step = xla_dynamo.train_step(model, loss_fn, optim.SGD(model.parameters(), lr=0.1))
        assert step(torch.randn(4, 3)) > 0


def logs(x):
    hidden = F.relu(x) * 2
    logger.warning("halfway")
    return hidden.sum(-1)


def test_a_compiled_model_logs_as_eager_does(monkeypatch):
    """It breaks the graph there; nobody's configuration is changed."""
    said = []
    monkeypatch.setattr(logger, "handle", said.append)
    counters.clear()
    x = torch.randn(3, 4)
    run = compiled(logs, fullgraph=False)
    for _ in range(2):
        torch.testing.assert_close(run(x), F.relu(x).mul(2).sum(-1))
    assert [record.getMessage() for record in said] == ["halfway"] * 2
    assert counters["stats"]["unique_graphs"] == 2


def test_a_compiled_model_is_whole_if_dynamo_is_told_to_ignore_it():
    x = torch.randn(3, 4)
    with torch._dynamo.config.patch(ignore_logging_functions=set()):  # put back what is added
        names = run_recipe("Logging", model=logs)
        torch.testing.assert_close(names["fast"](x), F.relu(x).mul(2).sum(-1))
