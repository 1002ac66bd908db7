"""Counters and metrics of what was compiled, executed and moved, under PyTorch/XLA's names."""

import collections
import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

from xla_dynamo.process_state import kept

# How many samples a metric keeps, as in PyTorch/XLA.
_given = os.environ.get("XLA_METRICS_SAMPLES", "")
_KEPT = max(int(_given), 1) if _given.isdecimal() else 1024
_lock = threading.Lock()


class _Metric:
    def __init__(self, unit: str) -> None:
        self.unit, self.count, self.total = unit, 0, 0.0
        self.samples: collections.deque[tuple[float, float]] = collections.deque(maxlen=_KEPT)


class _Counted:
    def __init__(self) -> None:
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.metrics: dict[str, _Metric] = {}


_counted = kept(_Counted)


def increment(name: str, by: int = 1) -> None:
    """Add to a counter."""
    with _lock:
        _counted.counters[name] += by


def add_sample(name: str, value: float, unit: str = "") -> None:
    """Add a sample to a metric; its unit is "time" (nanoseconds), "bytes", or none."""
    now = time.time()
    with _lock:
        metric = _counted.metrics.get(name)
        if metric is None:
            metric = _counted.metrics[name] = _Metric(unit)
        metric.count += 1
        metric.total += value
        metric.samples.append((now, value))


def add_time(name: str, seconds: float) -> None:
    """Add a sample to a timing metric."""
    add_sample(name, seconds * 1e9, "time")


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Add the time that a block takes to a timing metric."""
    start = time.perf_counter()
    try:
        yield
    finally:
        add_time(name, time.perf_counter() - start)


def counter_names() -> list[str]:
    """The names of the counters that were incremented since they were cleared."""
    with _lock:
        return sorted(_counted.counters)


def counter_value(name: str) -> int:
    """The value of a counter; 0 for one that was never incremented."""
    with _lock:
        return _counted.counters.get(name, 0)


def metric_names() -> list[str]:
    """The names of the metrics that have samples."""
    with _lock:
        return sorted(_counted.metrics)


def metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """What a metric has seen; None for one without samples.

    Returns:
        How many samples, their sum, and the latest 1,024 of them as (time, value), where the time
        is `time.time()` and durations are in nanoseconds.
    """
    with _lock:
        metric = _counted.metrics.get(name)
        return None if metric is None else (metric.count, metric.total, list(metric.samples))


def unit_of(name: str) -> str:
    """The unit of a metric: "time" (nanoseconds), "bytes", or "" for a plain number."""
    with _lock:
        return _counted.metrics[name].unit if name in _counted.metrics else ""


def clear_counters() -> None:
    """Forget every counter."""
    with _lock:
        _counted.counters.clear()


def clear_metrics() -> None:
    """Forget every sample."""
    with _lock:
        _counted.metrics.clear()


def clear_all() -> None:
    """Forget every counter and sample."""
    clear_counters()
    clear_metrics()
