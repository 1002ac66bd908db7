"""Where the suite's time goes, by file: `python -m tests.durations [--write] [pytest arguments]`.

A file's seconds are divided into tracing (Dynamo and AOTAutograd), lowering, XLA, and the rest:
the test itself, and processes that it starts. Seconds are those of the process that ran the file,
so two processes side by side spend two in one. With `--write`, the seconds go to
tests/durations.json, by which `make check` chooses what it has time for.
"""

import collections
import json
import pathlib
import sys
import time
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

FILE = pathlib.Path(__file__).with_suffix(".json")
_STAGES = ("tracing", "lowering", "xla")
_METRICS = {"LoweringTime": "lowering", "CompileTime": "xla"}


class Durations:
    """A pytest plugin that notes in each report how long the stages of its test took."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.imports: list[float] = []
        self.spent: collections.Counter[str] = collections.Counter()
        self.files: dict[str, collections.Counter[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["collected"] = time.perf_counter() - self.start
        self._watch()

    def _watch(self) -> None:
        """The tests clear the metrics, so what is added to them is seen here on its way."""
        from torch._dynamo import convert_frame

        from xla_dynamo.runtime import metrics

        add_time = metrics.add_time

        def watched(name: str, seconds: float) -> None:
            self.spent[_METRICS.get(name, "")] += seconds
            add_time(name, seconds)

        metrics.add_time = watched
        _compile = convert_frame._compile  # whatever Dynamo traces, and what its backend does

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return _compile(*args, **kwargs)
            finally:
                self.spent["dynamo"] += time.perf_counter() - start

        convert_frame._compile = timed

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):
        self.spent.clear()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        if report.when == "call":  # of which lowering and XLA are parts
            parts = {name: self.spent[name] for name in _STAGES[1:]}
            tracing = max(self.spent["dynamo"] - sum(parts.values()), 0)
            report.stages = {"tracing": tracing, **parts}
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("::")[0]
        spent = self.files.setdefault(name, collections.Counter())
        spent["seconds"] += report.duration
        spent["tests"] += report.when == "call"
        spent.update(getattr(report, "stages", {}))

    def pytest_testnodedown(self, node, error) -> None:
        self.imports.append(getattr(node, "workeroutput", {}).get("collected", 0))


def _table(durations: Durations) -> Table:
    columns = ("file", "tests", "seconds", *_STAGES, "rest")
    table = Table(*columns[:1], box=None)
    for column in columns[1:]:
        table.add_column(column, justify="right")
    total: collections.Counter[str] = collections.Counter()
    for name, spent in sorted(durations.files.items(), key=lambda pair: -pair[1]["seconds"]):
        table.add_row(name, *_cells(spent))
        total.update(spent)
    table.add_row("all", *_cells(total))
    for seconds in durations.imports:
        table.add_row("imports and collection of a process", "", f"{seconds:.1f}")
    return table


def _cells(spent: collections.Counter[str]) -> list[str]:
    stages = [spent[name] for name in _STAGES]
    rest = spent["seconds"] - sum(stages)
    return [str(int(spent["tests"])), *(f"{s:.1f}" for s in (spent["seconds"], *stages, rest))]


def main() -> int:
    """Run the suite as `make test` does, and print the table."""
    arguments = sys.argv[1:]
    write = "--write" in arguments
    arguments = [a for a in arguments if a != "--write"] or ["-n", "2", "-m", "not slow"]
    durations = Durations()
    status = pytest.main(["-p", "tests.durations", *arguments], plugins=[durations])
    Console(width=120).print(_table(durations))
    if write:
        seconds = {name: round(spent["seconds"], 1) for name, spent in durations.files.items()}
        FILE.write_text(json.dumps(dict(sorted(seconds.items())), indent=0) + "\n")
    return status


def pytest_configure(config: pytest.Config) -> None:
    """In the processes of pytest-xdist, which load this file as a plugin by its name."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


if __name__ == "__main__":
    sys.exit(main())
