"""Copies of the repository, in which a fault is put and tests are run."""

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from tests.faults.plugin import LOG
from tests.faults.reach import PLUGIN, environment, read_log
from tests.faults.sites import Fault

_LEFT_OUT = (".git", ".venv*", ".*_cache", ".hypothesis", ".faults", ".peers", "__pycache__")


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of running tests."""

    passed: bool
    late: bool  # stopped at the limit
    at: str | None  # the test that failed, or that was running when the process ended
    at_seconds: float  # for how long it ran
    ran: int  # how many tests ended
    seconds: float
    output: str


class Copy:
    """A copy of a checkout; one run of tests at a time."""

    def __init__(self, root: pathlib.Path, folder: pathlib.Path) -> None:
        self.root, self._folder = folder / "repository", folder
        shutil.copytree(root, self.root, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        (folder / "home").mkdir()
        self._process: subprocess.Popen | None = None
        self._ended = False

    @contextlib.contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Inside, the text has the fault."""
        path = self.root / fault.path
        source = path.read_bytes()
        try:
            self._write(path, fault.put_into(source))
            yield
        finally:
            self._write(path, source)

    @staticmethod
    def _write(path: pathlib.Path, source: bytes) -> None:
        """Python takes a compiled file for fresh by the second it was written in, and its size."""
        path.write_bytes(source)
        pathlib.Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)

    def run(self, tests: Sequence[str], more: Sequence[str], limit: float) -> Run:
        """Tests up to the first that fails, in their order.

        No marks are asked for, as tests are named one by one: `every` (tests/drawing.py) would
        count anew, and take others for slow.
        """
        return self._pytest(tests, more, limit)

    def collected(
        self, tests: Sequence[str], more: Sequence[str], limit: float
    ) -> tuple[Run, set[str]]:
        """All the tests in the files of some tests, found without running them."""
        files = {test.partition("::")[0] for test in tests}
        run = self._pytest(sorted(files), ["--collect-only", *more], limit)
        return run, {name for entry in self._log() for name in entry.get("items", ())}

    def _log(self) -> list[dict]:
        return read_log(self._folder / "log")

    def _pytest(self, tests: Sequence[str], more: Sequence[str], limit: float) -> Run:
        self._check()
        log, named = self._folder / "log", self._folder / "tests"
        log.unlink(missing_ok=True)
        named.write_text("\n".join(tests) + "\n")
        plugins = ["-p", "no:cacheprovider", "-p", PLUGIN]
        command = [sys.executable, "-m", "pytest", "-x", "-q", *plugins, *more, f"@{named}"]
        # What a fault may do to files in the user's folder shall not happen there.
        home = str(self._folder / "home")
        given = {**environment(self.root), LOG: str(log), "HOME": home, "XDG_CACHE_HOME": home}
        begun, at_begin = time.monotonic(), time.time()
        with open(self._folder / "output", "w+b") as output:
            self._process = subprocess.Popen(
                command,
                cwd=self.root,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            late = False
            try:
                status = self._process.wait(max(limit, 1))
            except subprocess.TimeoutExpired:
                late, status = True, None
            finally:
                self._stop()
            self._check()
            output.seek(0)
            text = output.read().decode(errors="replace")
        seconds = time.monotonic() - begun
        at = _last_test(self._log(), at_begin + seconds)
        return Run(status in (0, 5), late, *at, seconds, text[-4000:])

    def end(self) -> None:
        """Run no more tests, and end those that run."""
        self._ended = True
        self._stop()

    def _check(self) -> None:
        if self._ended:
            raise InterruptedError

    def _stop(self) -> None:
        """End the tests, and whatever they have started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _last_test(log: Sequence[dict], now: float) -> tuple[str | None, float, int]:
    """The test that failed or did not end, for how many seconds it ran, and how many others did."""
    begun: dict[str, float] = {}
    ended = []
    for entry in log:
        if name := entry.get("begun"):
            begun[name] = entry["time"]
        elif name := entry.get("test"):
            if entry["outcome"] == "failed":
                return name, entry["time"] - begun[name], len(ended)
            if entry["when"] == "teardown":
                ended.append(name)
        elif name := entry.get("collected"):
            return name, 0.0, 0
    running = [name for name in begun if name not in ended]
    return (running[-1], now - begun[running[-1]], len(ended)) if running else (None, 0, len(ended))
