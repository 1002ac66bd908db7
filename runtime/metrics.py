"""Counters and metrics of what was compiled, executed and moved, under PyTorch/XLA's names."""

import collections
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from xla_dynamo.process_state import kept
from xla_dynamo.switches.pytorch_xla import METRICS_SAMPLES

_F = TypeVar("_F", bound=Callable[..., Any])

_lock = threading.Lock()
_thread = threading.local()
# Counters of what others count for reasons of their own, by what tells their number.
_sources: dict[str, Callable[[], int]] = {}


class _Metric:
    def __init__(self, unit: str) -> None:
        self.unit, self.count, self.total = unit, 0, 0.0
        kept_samples = METRICS_SAMPLES.get()
        self.samples: collections.deque[tuple[float, float]] = collections.deque(
            maxlen=kept_samples
        )


class _Counted:
    def __init__(self) -> None:
        self.counters: defaultdict[str, int] = defaultdict(int)
        self.operators: defaultdict[str, int] = defaultdict(int)
        self.metrics: dict[str, _Metric] = {}
        # What `_sources` had counted when counters were cleared.
        self.before = {name: count() for name, count in _sources.items()}


_counted = kept(_Counted)


def increment(name: str, by: int = 1) -> None:
    """Add to a counter."""
    with _lock:
        _counted.counters[name] += by


def count_operator(name: str) -> None:
    """Add 1 to a counter of operators, which no other function increments.

    It takes no lock, as operators are many: threads that are recorded at once may lose a count.
    """
    _counted.operators[name] += 1


def count_by(name: str, count: Callable[[], int]) -> None:
    """Let a counter have the number that a function gives, less what it gave when it was cleared.

    For what is counted where nobody may wait for a lock, as in finalizers.
    """
    _sources[name] = count
    _counted.before[name] = count()


def forget_operators() -> None:
    """Forget operators, and what `count_by` counts: the package itself has caused them."""
    with _lock:
        _counted.operators.clear()
        _counted.before = {name: count() for name, count in _sources.items()}


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
    """Add a sample to a timing metric, or in a block of `renamed` to the one in its place."""
    names: Mapping[str, str] | None = getattr(_thread, "names", None)
    add_sample(names.get(name, name) if names else name, seconds * 1e9, "time")


@contextlib.contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Let this thread add times of metrics to other ones in a block: names by names."""
    before = getattr(_thread, "names", None)
    _thread.names = names
    try:
        yield
    finally:
        _thread.names = before


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Add the time that a block takes to a timing metric."""
    start = time.perf_counter()
    try:
        yield
    finally:
        add_time(name, time.perf_counter() - start)


def timing(name: str, function: _F) -> _F:
    """A function that adds the time of each call that returns to a timing metric."""

    def call(*args: Any) -> Any:
        start = time.perf_counter()
        result = function(*args)
        add_time(name, time.perf_counter() - start)
        return result

    return call  # type: ignore[return-value]


def _counters() -> dict[str, int]:
    with _lock:
        found = collections.Counter(_counted.counters)
        found.update(_counted.operators.copy())
        for name, count in _sources.items():
            found[name] += count() - _counted.before.get(name, 0)
        return {name: number for name, number in found.items() if number}


def counter_names() -> list[str]:
    """The names of the counters that were incremented since they were cleared."""
    return sorted(_counters())


def counter_value(name: str) -> int:
    """The value of a counter; 0 for one that was never incremented."""
    return _counters().get(name, 0)


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
    forget_operators()


def clear_metrics() -> None:
    """Forget every sample."""
    with _lock:
        _counted.metrics.clear()


def clear_all() -> None:
    """Forget every counter and sample."""
    clear_counters()
    clear_metrics()
