"""Names of `torch_xla.debug.metrics_compare_utils`: reports of metrics as numbers, and compared."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

_COUNTER = re.compile(r"Counter: (\S+)\s+Value: (\d+)")
_METRIC = re.compile(
    r"Metric: (\S+)\s+TotalSamples: (\S+)\s+Accumulator: (\S+)"
    r"(?:(?!Metric: |Counter: )[\s\S])*?Percentiles: (.*)"
)
_PERCENTILE = re.compile(r"(\d+)%=([^\s;]+)")
_NUMBER_AND_UNIT = re.compile(r"([\d.]+)([A-Za-z]+)")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
_MEGABYTES = {"PB": 1e9, "TB": 1e6, "GB": 1e3, "MB": 1.0, "KB": 1e-3, "B": 1e-6}
_DEFAULT = MappingProxyType({"base_expression": "v <= v_mean + (v_stddev * 2.0)"})


def parse_metrics_report(report: str, dehumanize: bool = True) -> dict[str, Any]:
    """The numbers of a report, by names as "CompileTime__Percentile_50_sec" and "MarkStep__Value".

    Times are in seconds and sizes in megabytes, as the names' ends say.

    Args:
        report: what `metrics_report()` gave, with any text around it.
        dehumanize: whether to give the numbers alone, and not pairs of the number and its text.

    Raises:
        ValueError: the report has a number in a form that no report has.
    """
    found: dict[str, Any] = {}
    for name, samples, total, percentiles in _METRIC.findall(report):
        texts = {"TotalSamples": samples, "Accumulator": total}
        texts |= {f"Percentile_{p}": text for p, text in _PERCENTILE.findall(percentiles)}
        for key, text in texts.items():
            number, unit = _number(text)
            found[f"{name}__{key}{unit}"] = number if dehumanize else (number, text)
    found |= {f"{name}__Value": int(number) for name, number in _COUNTER.findall(report)}
    return found


def _number(text: str) -> tuple[float, str]:
    """A number of a report, and the end of its name: "01m29s615ms" is 89.615 and "_sec"."""
    try:
        return float(text), ""
    except ValueError:
        pass
    parts = _NUMBER_AND_UNIT.findall(text)
    if "".join(number + unit for number, unit in parts) == text and parts:
        for table, end in ((_SECONDS, "_sec"), (_MEGABYTES, "_mb")):
            if all(unit in table for _, unit in parts):
                return sum(float(number) * table[unit] for number, unit in parts), end
    raise ValueError(f"{text!r} is no number, no time as 01m29s615ms, and no size as 3.5MB")


def get_data_points_from_metrics_reports(
    metrics_reports: Sequence[str],
) -> dict[str, list[float | None]]:
    """The numbers of reports: for each name a list with one for each report, None where it lacks.

    Raises:
        ValueError: see `parse_metrics_report`.
    """
    parsed = [parse_metrics_report(report) for report in metrics_reports]
    names = dict.fromkeys(name for numbers in parsed for name in numbers)
    return {name: [numbers.get(name) for numbers in parsed] for name in names}


def compare_metrics(
    data_points: Mapping[str, Sequence[float | None]],
    metrics_report: str,
    config: Mapping[str, str] = _DEFAULT,
) -> str:
    """What a report has that earlier ones would not lead to expect, a line each; "" for nothing.

    New counters of operators that torch runs (aten::) are told, too.

    Args:
        data_points: earlier reports, as `get_data_points_from_metrics_reports` gives them.
        metrics_report: the report.
        config: what is expected: expressions of Python, of `v`, `v_mean` and `v_stddev`, by names
            as "CompileTime__Accumulator_sec_expression"; the one of "base_expression" is for all
            others. They are evaluated, so give none that you do not trust.

    Raises:
        ValueError: see `parse_metrics_report`.
        KeyError: `config` lacks "base_expression", and a number has no expression.
    """
    lines = []
    for name, value in sorted(parse_metrics_report(metrics_report).items()):
        earlier = [number for number in data_points.get(name, ()) if number is not None]
        if not earlier:
            if name.startswith("aten::"):
                lines.append(f"Found new aten counter: {name}: {value}\n")
            continue
        mean, deviation = np.mean(earlier), np.std(earlier)
        expression = config.get(f"{name}_expression") or config["base_expression"]
        if not eval(expression, {"v": value, "v_mean": mean, "v_stddev": deviation}):
            lines.append(
                f"{name} failed its expression check. Expression: {expression}.  "
                f"Mean: {mean}.  Stddev: {deviation}.  Actual Value: {value}\n"
            )
    return "".join(lines)
