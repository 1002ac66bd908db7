"""A training step that the user wrote, compiled as it stands: what Dynamo makes one graph of."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.compiling import assert_matches_eager, compiled
from xla_dynamo.runtime import metrics

pytestmark = pytest.mark.skipif(
    not hasattr(torch._dynamo.config, "trace_autograd_ops"),
    reason="this torch's Dynamo does not trace backward()",
)


@pytest.fixture(autouse=True)
def dynamo_traces_backward():
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        yield


def make():
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*body, nn.Linear(4 * 4, 3)).double()


def with_grad(model):
    params = list(model.parameters())

    def step(x, y):
        loss = F.cross_entropy(model(x), y)
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, grad in zip(params, grads, strict=True):
                p.sub_(0.1 * grad)
        return loss.detach()

    return step


def with_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def run(make_step, *, fullgraph):
    model = make()
    reference = copy.deepcopy(model)
    fast = compiled(make_step(model), fullgraph=fullgraph)
    eager = make_step(reference)
    metrics.clear_all()
    for index in range(4):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, 1, 4, 4, dtype=torch.float64, generator=generator)
        y = torch.randint(0, 3, (8,), generator=generator)
        assert_matches_eager(fast, x, y, eager=eager)
    expected = dict(reference.state_dict())
    torch.testing.assert_close(dict(model.state_dict()), expected, rtol=1e-7, atol=1e-9)
    return metrics.counter_value("UncachedCompile")


def test_an_update_written_by_hand_is_one_executable():
    assert run(with_grad, fullgraph=True) == 1


@pytest.mark.filterwarnings("ignore:Profiler record function")
def test_an_optimizer_breaks_the_graph_and_is_right():
    assert run(with_optimizer, fullgraph=False) > 1


def test_an_optimizer_is_not_one_graph():
    """Torch breaks the graph in the optimizer: when this fails, it has ceased to."""
    with pytest.raises(torch._dynamo.exc.Unsupported):
        run(with_optimizer, fullgraph=True)
