"""Batches that are uploaded in the background."""

import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import xla_dynamo
from tests.spmd.sharding import WIDE, mlp
from xla_dynamo import metrics, spmd
from xla_dynamo.errors import ShardingError
from xla_dynamo.lazy import contents


def loader(batches=5):
    x = torch.arange(batches * 4.0).view(-1, 2)
    return DataLoader(TensorDataset(x, x.sum(1)), batch_size=2)


def test_batches_are_on_the_device_and_iterations_are_steps():
    metrics.clear_all()
    device_loader = xla_dynamo.MpDeviceLoader(loader(), "xla")
    assert len(device_loader) == 5
    kept = []
    for x, y in device_loader:
        assert x.device.type == y.device.type == "xla"
        kept.append(x.sum(1) - y)
        assert contents.cell_of(kept[-1]).value.buffer is None
        assert all(contents.cell_of(k).value.buffer is not None for k in kept[:-1])
    assert all(contents.cell_of(k).value.buffer is not None for k in kept)
    assert all(k.eq(0).all().item() for k in kept)
    assert metrics.counter_value("MarkStep") == 5


def test_several_batches_a_step():
    metrics.clear_all()
    for _ in xla_dynamo.MpDeviceLoader(loader(6), batches_per_execution=3):
        pass
    assert metrics.counter_value("MarkStep") == 2


def test_structures():
    batches = [{"x": torch.ones(2), "names": ["a", "b"], "y": (torch.zeros(1), 3)}]
    (batch,) = xla_dynamo.MpDeviceLoader(batches)
    assert batch["x"].device.type == batch["y"][0].device.type == "xla"
    assert batch["names"] == ["a", "b"]
    assert batch["y"][1] == 3


def test_again_and_again_and_not_to_the_end():
    device_loader = xla_dynamo.MpDeviceLoader(loader(50), device_prefetch_size=2)
    threads = threading.active_count()
    for _ in range(3):
        for x, _ in device_loader:
            first = x
            break
        assert first.tolist() == [[0, 1], [2, 3]]
    deadline = time.monotonic() + 10
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert threading.active_count() == threads


def test_what_the_loader_raises():
    def broken():
        yield torch.ones(1)
        raise OSError("no more")

    batches = iter(xla_dynamo.MpDeviceLoader(broken()))
    assert next(batches).item() == 1
    with pytest.raises(OSError, match="no more"):
        next(batches)


def test_a_loader_with_workers():
    data = TensorDataset(torch.arange(8.0).view(-1, 1))
    batches = DataLoader(data, 2, num_workers=1, multiprocessing_context="spawn")
    total = sum(x.sum() for (x,) in xla_dynamo.MpDeviceLoader(batches))
    assert total.item() == 28


def test_a_parallel_loader():
    parallel = xla_dynamo.ParallelLoader(loader(), ["xla:0"])
    assert sum(len(x) for x, _ in parallel.per_device_loader("xla:0")) == 10
    with pytest.raises(ValueError, match="there is one device"):
        xla_dynamo.ParallelLoader(loader(), ["xla:0", "xla:1"])
    with pytest.raises(ValueError, match="at least 1"):
        xla_dynamo.MpDeviceLoader(loader(), device_prefetch_size=0)


def test_training_while_another_thread_uploads():
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 1).to("xla")
    optimizer = torch.optim.Adam(layer.parameters(), 0.05)
    losses = []
    for _ in range(6):
        for x, y in xla_dynamo.MpDeviceLoader(loader(10)):
            optimizer.zero_grad()
            loss = (layer(x / 40)[:, 0] - y / 40).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    assert losses[-1].item() < losses[0].item()


def test_leaving_a_loop_waits_for_nobody():
    blocked = threading.Event()

    def slow():
        yield torch.ones(1)
        blocked.wait(30)
        yield torch.ones(1)

    start = time.monotonic()
    for _ in xla_dynamo.MpDeviceLoader(slow()):
        break
    assert time.monotonic() - start < 10
    blocked.set()


def test_batches_are_made_in_the_callers_grad_mode():
    batches = [torch.ones(1, requires_grad=True)]
    with torch.no_grad():
        (x,) = xla_dynamo.MpDeviceLoader(batches)
    assert not x.requires_grad
    (x,) = xla_dynamo.MpDeviceLoader(batches)
    assert x.requires_grad


def test_batches_that_are_sharded():
    spec = spmd.ShardingSpec(WIDE, ("data", None))
    for x, y in xla_dynamo.MpDeviceLoader(loader(), "xla", input_sharding=spec):
        assert spmd.sharding_of(x).axes == (("data",), ())
        assert spmd.sharding_of(y) is None  # of another rank
        assert (x.sum(1) - y).eq(0).all().item()


def test_batches_that_are_sharded_by_key():
    batches = [{"x": torch.full((8, 4), float(i)), "n": i, "mask": torch.ones(8)} for i in range(3)]
    specs = {
        "x": spmd.ShardingSpec(WIDE, ("data", "model")),
        "mask": spmd.ShardingSpec(WIDE, ("model",)),
        "n": None,
    }
    device_loader = xla_dynamo.MpDeviceLoader(batches, "xla", input_sharding=specs)
    for i, batch in enumerate(device_loader):
        assert spmd.sharding_of(batch["x"]).axes == (("data",), ("model",))
        assert spmd.sharding_of(batch["mask"]).axes == (("model",),)
        assert batch["n"] == i
        assert (batch["x"] * batch["mask"].unsqueeze(1)).mean().item() == i
    del specs["n"]
    with pytest.raises(ShardingError, match="input_sharding has the keys"):
        list(xla_dynamo.MpDeviceLoader(batches, "xla", input_sharding=specs))


def test_batches_of_the_cpu_are_sharded_for_compiled_models():
    model = mlp()
    fast = torch.compile(model, backend="openxla")
    batches = [torch.randn(16, 32) for _ in range(2)]
    spec = spmd.ShardingSpec(WIDE, ("data", None))
    for x in xla_dynamo.MpDeviceLoader(batches, "cpu", input_sharding=spec):
        assert spmd.sharding_of(x).axes == (("data",), ())
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)


def test_sharded_batches_keep_their_gradients():
    batch = torch.randn(16, 8, requires_grad=True)
    spec = spmd.ShardingSpec(WIDE, ("data", None))
    (x,) = xla_dynamo.MpDeviceLoader([batch], "xla", input_sharding=spec)
    assert spmd.sharding_of(x).axes == (("data",), ())
    (x * 2).sum().backward()
    torch.testing.assert_close(batch.grad, torch.full((16, 8), 2.0))


def test_what_is_no_sharding():
    with pytest.raises(ShardingError, match="input_sharding is a"):
        xla_dynamo.MpDeviceLoader(loader(), "xla", input_sharding=("data", None))
