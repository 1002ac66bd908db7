"""Names of `torch_xla.debug.metrics` that say less here where nothing was counted."""

from collections.abc import Collection

import xla_dynamo

_metrics = xla_dynamo.metrics
_COUNTERS = ("CachedCompile", "MarkStep", "UncachedCompile", "DynamoSyncInputExecuteTime")


def counter_value(name: str) -> int | None:
    """The value of a counter; None for one that was never incremented since it was cleared."""
    return _metrics.counter_value(name) or None


def short_metrics_report(
    counter_names: Collection[str] | None = None, metric_names: Collection[str] | None = None
) -> str:
    """Some counters, operators that torch ran, and some metrics without percentiles.

    Args:
        counter_names: which counters; those of compilations and steps unless there are any.
        metric_names: which metrics; those of compilations, executions and transfers unless there
            are any.
    """
    counters = dict.fromkeys([*(counter_names or _COUNTERS), *_metrics.executed_fallback_ops()])
    return _metrics.short_metrics_report([*counters], metric_names or None)
