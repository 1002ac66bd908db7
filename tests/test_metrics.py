"""Counters and metrics, and reports in PyTorch/XLA's form."""

import re

import pytest
import torch

from xla_dynamo import metrics
from xla_dynamo.runtime import metrics as store


@pytest.fixture(autouse=True)
def cleared():
    metrics.clear_all()
    yield
    metrics.clear_all()


def test_counters():
    store.increment("aten::nonzero")
    store.increment("aten::nonzero", 2)
    store.increment("CachedCompile")
    assert metrics.counter_names() == ["CachedCompile", "aten::nonzero"]
    assert metrics.counter_value("aten::nonzero") == 3
    assert metrics.counter_value("nothing") == 0
    assert metrics.executed_fallback_ops() == ["aten::nonzero"]
    metrics.clear_counters()
    assert metrics.counter_names() == []


def test_data_is_in_nanoseconds_and_the_latest():
    for n in range(2000):
        store.add_time("CompileTime", 1e-3)
        store.add_sample("TensorsGraphSize", n)
    count, total, samples = metrics.metric_data("CompileTime")
    assert count == 2000
    assert total == pytest.approx(2e9)
    assert len(samples) == 1024
    assert samples[0][0] <= samples[-1][0]
    assert metrics.metric_data("TensorsGraphSize")[2][-1][1] == 1999
    assert metrics.metric_data("nothing") is None
    assert metrics.metric_names() == ["CompileTime", "TensorsGraphSize"]
    metrics.clear_metrics()
    assert metrics.metric_names() == []


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (1.5e-6, "001.500us"),
        (1.033e-3, "001ms033.000us"),
        (9.969486408, "09s969ms486.408us"),
        (369.401746, "06m09s401ms746.000us"),
        (3600.0, "01h00m00s000ms000.000us"),
    ],
)
def test_durations(seconds, shown):
    store.add_time("CompileTime", seconds)
    assert f"  Accumulator: {shown}\n" in metrics.metrics_report()


def test_the_form_of_a_report():
    for value in range(1, 101):
        store.add_time("ExecuteTime", value * 1e-3)
    store.add_sample("InboundData", 3 * 1024**2, "bytes")
    store.increment("CachedCompile", 7)
    report = metrics.metrics_report()
    assert "Metric: ExecuteTime\n  TotalSamples: 100\n" in report
    assert re.search(r"ValueRate: .*us / second\n  Rate: [\d.e+]+ / second\n", report)
    assert "50%=051ms000.000us; 80%=081ms000.000us" in report
    assert "99%=100ms000.000us" in report
    assert "Accumulator: 3.00MB\n" in report
    assert report.endswith("Counter: CachedCompile\n  Value: 7\n")


def test_a_short_report():
    store.add_time("CompileTime", 1)
    store.add_time("Other", 1)
    store.increment("UncachedCompile")
    store.increment("aten::sort")
    store.increment("Another")
    report = metrics.short_metrics_report()
    assert report == (
        "Metric: CompileTime\n  TotalSamples: 1\n  Accumulator: 01s000ms000.000us\n"
        "Counter: UncachedCompile\n  Value: 1\nCounter: aten::sort\n  Value: 1\n"
    )
    assert metrics.short_metrics_report(["Another"], []) == "Counter: Another\n  Value: 1\n"


def test_compilations_are_counted():
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="openxla")(torch.ones(3))
    assert metrics.counter_value("UncachedCompile") == 1
    assert metrics.metric_data("CompileTime")[0] == 1
    assert metrics.metric_data("LoweringTime")[0] == 1
