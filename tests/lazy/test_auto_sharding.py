"""Programs on tensors of the device 'xla' that choose their shardings by themselves."""

import concurrent.futures

import pytest
import torch

import xla_dynamo
from tests.spmd.sharding import mlp
from xla_dynamo import metrics, spmd


@pytest.fixture(autouse=True)
def automatic(monkeypatch):
    """For a test: programs choose shardings."""
    monkeypatch.setenv("XLA_AUTO_SPMD", "1")


def losses(device, steps=4):
    """The losses of a training, and the model."""
    model = mlp((64, 256, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(steps):
        x = torch.randn(32, 64, generator=generator).to(device)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        xla_dynamo.sync()
        found.append(loss.item())
    return found, model


def test_a_training_loop_is_sharded_and_learns_the_same():
    wanted, _ = losses("cpu")
    found, model = losses(xla_dynamo.device())
    assert found == pytest.approx(wanted, rel=1e-4)
    sharding = spmd.sharding_of(model[0].weight)
    assert sharding.mesh.size() == 8
    assert any(sharding.axes)
    assert "inputs of a program" in spmd.auto_sharding_reports()[-1]


def test_later_steps_choose_and_compile_nothing():
    losses(xla_dynamo.device())
    chosen = len(spmd.auto_sharding_reports())
    before = metrics.counter_value("CachedCompile") or 0
    losses(xla_dynamo.device())
    assert len(spmd.auto_sharding_reports()) == chosen
    assert metrics.counter_value("CachedCompile") >= before + 4


def test_programs_without_products_stay_on_one_device():
    before = spmd.auto_sharding_reports()
    x = torch.arange(64.0).to(xla_dynamo.device())
    torch.testing.assert_close((x * 2 + 1).cpu(), torch.arange(64.0) * 2 + 1)
    assert spmd.auto_sharding_reports() == before
    assert spmd.sharding_of(x) is None


def test_threads_choose_one_after_another():
    x = torch.randn(64, 64)
    on_device = x.to(xla_dynamo.device())
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: (on_device @ (on_device + k)).cpu(), range(8)))
    for k, result in enumerate(found):
        torch.testing.assert_close(result, x @ (x + k), rtol=1e-4, atol=1e-3)
