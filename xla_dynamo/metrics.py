"""What was compiled, executed and moved: counters, metrics, and reports in PyTorch/XLA's form.

The names are those of `torch_xla.debug.metrics`.

Compilations: `CompileTime` has a sample for each executable, and `CreateCompileHandles` counts
them. `UncachedCompile` counts programs that were compiled, `CachedCompile` lazy programs that were
there already, and `DynamoExtractCompiledGraph` graphs that Dynamo gave. `LoweringTime` has a sample
for each program, `PartitionTime` for each that was partitioned before XLA, and `PassTime.name` for
each run of a pass.

Runs: `ExecuteTime` has a sample for each run of a lazy program, and of a compiled function on
tensors of the 'xla' device; of what was partitioned over devices, `ExecuteReplicatedTime`.
`ExecuteComputation` and `ExecuteReplicated` count lazy programs that ran. In eager mode the two
times are `EagerOpCompileTime` and `EagerOpExecuteTime`. `TensorsGraphSize` has the operators of
each lazy program that ran, `InputOutputAliasCount` the inputs that each compiled one gives its
memory of, and `DeviceLockWait` how long other threads kept it from running.
`RunCachedGraphInputData` and `RunCachedGraphOutputData` are the times before and behind the run
of a compiled function, and `DynamoSyncInputExecuteTime` counts calls that computed arguments
first. `MarkStep` counts steps.

Tensors: `TransferToDeviceTime` and `OutboundData` have a sample for each tensor that is moved to
the device, `TransferFromDeviceTime` and `InboundData` for each that is read; `TensorToData` has
one for each tensor of torch that became a buffer of PJRT. `CreateDataHandles` counts such buffers
and results of programs, `CreateXlaTensor` and `DestroyXlaTensor` storages, `XlaMarkSharding` marks.

Operators: `xla::op` counts operators that were recorded, and `aten::op` those that torch ran on
the CPU, and values that were asked for (`aten::_local_scalar_dense`).

PyTorch/XLA also counts inside of its tracing and of its C++ (`LazyTracing`, `UnwrapXlaData`,
`DeviceDataCacheMiss`, `IrValueTensorToXlaData`, ...), which nothing here stands for.
"""

import os
import sys
import threading
from collections.abc import Collection, Sequence

from xla_dynamo.process_state import kept
from xla_dynamo.runtime.metrics import (
    clear_all,
    clear_counters,
    clear_metrics,
    counter_names,
    counter_value,
    metric_data,
    metric_names,
    unit_of,
)
from xla_dynamo.runtime.processes.job import seat
from xla_dynamo.switches.pytorch_xla import METRICS_FILE

__all__ = [
    "clear_all",
    "clear_counters",
    "clear_metrics",
    "counter_names",
    "counter_value",
    "executed_fallback_ops",
    "metric_data",
    "metric_names",
    "metrics_report",
    "save_metrics",
    "short_metrics_report",
]

_PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)
_SHORT_COUNTERS = ("CachedCompile", "MarkStep", "UncachedCompile")
_SHORT_METRICS = (
    "CompileTime",
    "ExecuteTime",
    "ExecuteReplicatedTime",
    "TransferFromDeviceTime",
    "TransferToDeviceTime",
)


def metrics_report() -> str:
    """Every metric and counter, with percentiles of the latest samples."""
    return "".join([*map(_metric, metric_names()), *map(_counter, counter_names())])


def short_metrics_report(
    counter_names: Collection[str] | None = None, metric_names: Collection[str] | None = None
) -> str:
    """Some counters and metrics, the latter without percentiles.

    Args:
        counter_names: which counters; None for those of compilations and steps, and for operators
            that torch ran.
        metric_names: which metrics; None for those of compilations, executions and transfers.
    """
    if counter_names is None:
        counter_names = [*_SHORT_COUNTERS, *executed_fallback_ops()]
    wanted = _SHORT_METRICS if metric_names is None else metric_names
    metrics = [_metric(name, whole=False) for name in wanted if metric_data(name) is not None]
    counters = [_counter(name) for name in counter_names if counter_value(name)]
    return "".join([*metrics, *counters])


def executed_fallback_ops() -> list[str]:
    """The operators that torch ran on the CPU since counters were cleared, as in aten::nonzero."""
    return [name for name in counter_names() if "::" in name and not name.startswith("xla::")]


class _Saved:
    def __init__(self) -> None:
        self.reports = 0


_saved = kept(_Saved)
_saving = threading.Lock()


def save_metrics(metrics_file: str | os.PathLike[str] | None = None) -> None:
    """Append the report to a file.

    Each step does it where the environment variable XLA_METRICS_FILE names one. Of several
    processes each has its own file, with the process's rank behind a dot.

    Args:
        metrics_file: the file, STDERR or STDOUT; None for what XLA_METRICS_FILE says, if anything.
    """
    if metrics_file is None:
        metrics_file = METRICS_FILE.get()
        if not metrics_file:
            return
        here = seat()
        if here.size > 1:
            metrics_file = f"{metrics_file}.{here.rank}"
    with _saving:
        text = f"[MetricsData; step={_saved.reports}]\n{metrics_report()}\n"
        _saved.reports += 1
        if metrics_file in ("STDERR", "STDOUT"):
            print(text, file=sys.stderr if metrics_file == "STDERR" else sys.stdout)
            return
        with open(metrics_file, "a") as file:
            file.write(text)


def _counter(name: str) -> str:
    return f"Counter: {name}\n  Value: {counter_value(name)}\n"


def _metric(name: str, whole: bool = True) -> str:
    data = metric_data(name)
    if data is None:
        return ""
    count, total, samples = data
    unit = unit_of(name)
    lines = [
        f"Metric: {name}",
        f"  TotalSamples: {count}",
        f"  Accumulator: {_shown(total, unit)}",
    ]
    if whole:
        span = samples[-1][0] - samples[0][0]
        if span > 0:
            kept = sum(value for _, value in samples)
            lines.append(f"  ValueRate: {_shown(kept / span, unit)} / second")
            lines.append(f"  Rate: {len(samples) / span:g} / second")
        values = sorted(value for _, value in samples)
        points = [f"{p}%={_shown(_percentile(values, p), unit)}" for p in _PERCENTILES]
        lines.append(f"  Percentiles: {'; '.join(points)}")
    return "\n".join(lines) + "\n"


def _percentile(values: Sequence[float], percent: int) -> float:
    return values[min(len(values) * percent // 100, len(values) - 1)]


def _shown(value: float, unit: str) -> str:
    if unit == "time":
        return _duration(value)
    if unit == "bytes":
        for name in ("B", "KB", "MB", "GB"):
            if value < 1024:
                return f"{value:.2f}{name}"
            value /= 1024
        return f"{value:.2f}TB"
    return f"{value:.2f}"


def _duration(nanoseconds: float) -> str:
    """As in 06m09s401ms746.001us."""
    parts: list[str] = []
    rest = nanoseconds
    for name, size in (("d", 86400e9), ("h", 3600e9), ("m", 60e9), ("s", 1e9), ("ms", 1e6)):
        number, rest = divmod(rest, size)
        if number or parts:
            parts.append(f"{int(number):03d}ms" if name == "ms" else f"{int(number):02d}{name}")
    return "".join([*parts, f"{rest / 1e3:07.3f}us"])
