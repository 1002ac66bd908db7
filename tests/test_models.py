"""Real models, every family: one graph, nothing run by eager, equal to eager."""

import pytest
import torch

from bench.accuracy import relative_error
from bench.models import MODELS, build
from xla_dynamo.runtime import metrics

# transformers and torch.jit grumble about themselves while they are imported.
pytestmark = [pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_agrees_with_eager(name, batch):
    model = build(name, "tiny")
    torch.manual_seed(1)
    inputs = MODELS[name].inputs("tiny", batch)
    metrics.clear_all()
    with torch.no_grad():
        expected = model(**inputs)
        actual = torch.compile(model, backend="openxla", fullgraph=True)(**inputs)
    assert relative_error(expected, actual) <= 1e-4
    assert metrics.counter_value("UncachedCompile") == 1  # the whole model is one executable


@pytest.mark.parametrize("name", ["bert", "resnet50"])
def test_agrees_with_float64(name):
    """The reference for float32 is exact arithmetic: we are as close to it as eager is."""
    model = build(name, "tiny").double()
    torch.manual_seed(1)
    inputs = MODELS[name].inputs("tiny", 2)
    wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.no_grad():
        exact = model(**wide)
        assert relative_error(exact, torch.compile(model, backend="openxla")(**wide)) <= 1e-12
        narrow = model.float()
        compiled = torch.compile(narrow, backend="openxla", fullgraph=True)(**inputs)
        eager = narrow(**inputs)
    assert distance(exact, compiled) <= 2 * distance(exact, eager) + 1e-7


def distance(exact, result) -> float:
    """Relative root mean square error of the first output."""
    e, r = exact[0].double(), result[0].double()
    return float((e - r).norm() / e.norm())
