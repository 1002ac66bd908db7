"""Pytest's plugin that tells which test runs: coverage.py, and a log of one JSON object a line."""

import json
import os
import time

import coverage
import pytest

LOG = "FAULTS_LOG"  # the path of the log


def pytest_configure(config: pytest.Config) -> None:
    """Begin the log, in the one process that sees every test, and not in a worker of xdist's."""
    path = os.environ.get(LOG)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Log(path))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """The lines that run from here on, those of fixtures too, are reached by this test."""
    if measured := coverage.Coverage.current():
        measured.switch_context(item.nodeid)
        measured.set_option("run:context", item.nodeid)  # of processes that are forked


class _Log:
    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115

    def _write(self, **fields: object) -> None:
        self._file.write(json.dumps({**fields, "time": time.time()}) + "\n")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(begun=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = {"outcome": report.outcome, "seconds": report.duration, "when": report.when}
        self._write(test=report.nodeid, **outcome)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(collected=report.nodeid)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            self._write(items=[item.nodeid for item in session.items])

    def pytest_unconfigure(self) -> None:
        self._file.close()
