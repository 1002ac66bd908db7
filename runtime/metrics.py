"""Counters and timings of the runtime, under PyTorch/XLA's names."""

import threading
from collections import defaultdict

_lock = threading.Lock()
_counters: defaultdict[str, int] = defaultdict(int)
_samples: defaultdict[str, list[float]] = defaultdict(list)


def increment(name: str, by: int = 1) -> None:
    """Add to a counter."""
    with _lock:
        _counters[name] += by


def add_time(name: str, seconds: float) -> None:
    """Add a sample to a timing metric."""
    with _lock:
        _samples[name].append(seconds)


def counter_names() -> list[str]:
    """The names of the counters that were incremented since the last `clear_all`."""
    with _lock:
        return sorted(_counters)


def counter_value(name: str) -> int:
    """The value of a counter; 0 for one that was never incremented."""
    with _lock:
        return _counters.get(name, 0)


def metric_names() -> list[str]:
    """The names of the timing metrics that have samples."""
    with _lock:
        return sorted(_samples)


def metric_data(name: str) -> tuple[int, float, list[float]]:
    """The number of samples, their sum in seconds, and the samples of a timing metric."""
    with _lock:
        samples = list(_samples.get(name, ()))
    return len(samples), sum(samples), samples


def clear_all() -> None:
    """Forget every counter and sample."""
    with _lock:
        _counters.clear()
        _samples.clear()
