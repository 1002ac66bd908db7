"""What the device counts under PyTorch/XLA's names, and `torch_xla.debug.metrics`."""

import gc
import threading

import pytest
import torch

import xla_dynamo
from xla_dynamo import metrics, spmd
from xla_dynamo.runtime import metrics as store
from xla_dynamo.torch_xla.forms import metrics as met


@pytest.fixture(autouse=True)
def nothing_counted():
    xla_dynamo.sync()
    gc.collect()
    metrics.clear_all()


def count(name):
    data = metrics.metric_data(name)
    return 0 if data is None else data[0]


def test_operators_are_counted_by_their_functional_names():
    x = torch.tensor(100, device="xla")
    x += 2
    x = x + 1
    x.neg_().expand(3).sum()
    assert metrics.counter_value("xla::add") == 2
    assert metrics.counter_value("xla::neg") == 1
    assert metrics.counter_value("xla::expand_copy") == 1
    assert metrics.counter_value("xla::sum") == 1
    assert metrics.executed_fallback_ops() == []
    metrics.clear_counters()
    assert metrics.counter_names() == []
    assert met.counter_value("xla::add") is None
    x = x + 1
    assert met.counter_value("xla::add") == 1


def test_values_that_are_asked_for_are_fallbacks():
    x = torch.tensor([3, 0], device="xla")
    assert x[0].item() == 3
    x.nonzero()
    assert metrics.executed_fallback_ops() == ["aten::_local_scalar_dense", "aten::nonzero"]
    assert "aten::_local_scalar_dense\n  Value: 1" in met.short_metrics_report(["MarkStep"])


def test_storages_and_moves():
    x = torch.ones(4, 2, device="xla")
    moved = torch.arange(8).to("xla")
    moved.view(4, 2)
    moved.cpu()
    assert metrics.counter_value("CreateXlaTensor") == 2
    assert met.counter_value("DestroyXlaTensor") is None
    del x, moved
    assert metrics.counter_value("DestroyXlaTensor") == 2
    assert metrics.metric_data("OutboundData")[:2] == (1, 64)
    assert metrics.metric_data("InboundData")[:2] == (1, 64)
    for name in ("TensorToData", "TransferToDeviceTime", "TransferFromDeviceTime"):
        assert count(name) == 1, name
    assert metrics.counter_value("CreateDataHandles") == 1
    store.increment("CreateXlaTensor", 3)
    assert metrics.counter_value("CreateXlaTensor") == 5


def test_programs_and_steps(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_METRICS_FILE", str(tmp_path / "told"))
    x = torch.zeros(5, device="xla")
    xla_dynamo.sync()
    for _ in range(2):
        x.add_(1).mul_(3)
        xla_dynamo.sync()
    assert x.tolist() == [12] * 5
    assert metrics.counter_value("ExecuteComputation") == count("ExecuteTime") == 3
    assert metrics.metric_data("TensorsGraphSize")[:2] == (3, 5)
    assert metrics.metric_data("InputOutputAliasCount")[1] == 1
    assert metrics.counter_value("CreateCompileHandles") == count("CompileTime") == 2
    assert count("DeviceLockWait") >= 3
    told = (tmp_path / "told").read_text()
    assert told.count("[MetricsData; step=") == told.count("Counter: MarkStep\n") == 3
    monkeypatch.delenv("XLA_METRICS_FILE")
    xla_dynamo.sync()
    metrics.save_metrics()
    assert (tmp_path / "told").read_text() == told


def test_reports_on_standard_output(capsys):
    xla_dynamo.sync()
    metrics.save_metrics("STDOUT")
    metrics.save_metrics("STDERR")
    told = capsys.readouterr()
    assert "Counter: MarkStep\n  Value: 1\n" in told.out
    assert "Counter: MarkStep\n  Value: 1\n" in told.err


def test_operators_of_eager_mode():
    x = torch.ones(3, device="xla")
    xla_dynamo.eager_mode(True)
    try:
        metrics.clear_all()
        y = x * 41 - 7
        assert count("EagerOpExecuteTime") == 2
        assert count("EagerOpCompileTime") == metrics.counter_value("CreateCompileHandles") == 2
        assert "CompileTime" not in metrics.metric_names()
        assert "ExecuteTime" not in metrics.metric_names()
    finally:
        xla_dynamo.eager_mode(False)
    assert y.tolist() == [34] * 3


def test_compiled_functions():
    layer = torch.nn.Linear(3, 2).to("xla")
    compiled = torch.compile(layer, backend="openxla")
    x = torch.ones(4, 3, device="xla")
    xla_dynamo.sync()
    metrics.clear_all()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x).cpu(), layer(x).cpu())
    assert metrics.counter_value("DynamoExtractCompiledGraph") == 1
    compiled(x).sum().backward()
    assert metrics.counter_value("DynamoExtractCompiledGraph") == 3  # a forward, and a backward
    metrics.clear_all()
    with torch.no_grad():
        compiled(x)
    for name in ("RunCachedGraphInputData", "ExecuteTime", "RunCachedGraphOutputData"):
        assert count(name) == 1, name
    assert met.counter_value("DynamoSyncInputExecuteTime") is None
    with torch.no_grad():
        compiled(x + 1)
    assert metrics.counter_value("DynamoSyncInputExecuteTime") == 1


def test_marks():
    spmd.mark_sharding(torch.ones(4, device="xla"), spmd.Mesh([0], (1,), ("x",)), ("x",))
    assert metrics.counter_value("XlaMarkSharding") == 1


def test_short_reports_have_defaults_in_the_place_of_nothing():
    torch.ones(2, device="xla").add(1).cpu()
    xla_dynamo.sync()
    short = met.short_metrics_report([], [])
    assert "Counter: MarkStep" in short
    assert "Metric: ExecuteTime" in short
    assert "Percentiles" not in short
    short = met.short_metrics_report(["CreateDataHandles"], ["TensorsGraphSize"])
    assert "Counter: CreateDataHandles" in short
    assert "Metric: TensorsGraphSize" in short
    assert "MarkStep" not in short
    assert "ExecuteTime" not in short


def test_threads_have_their_own_names():
    with store.renamed({"CompileTime": "Other"}):
        thread = threading.Thread(target=store.add_time, args=("CompileTime", 1.0))
        thread.start()
        thread.join()
        store.add_time("CompileTime", 1.0)
    store.add_time("CompileTime", 1.0)
    assert (count("CompileTime"), count("Other")) == (2, 1)
