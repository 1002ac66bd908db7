"""Which test reaches which line: recorded in one run of the suite, and read again."""

import collections
import io
import json
import os
import pathlib
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence

import coverage
from coverage.numbits import numbits_to_nums

from docs import import_floors
from tests import drawing
from tests.faults.plugin import LOG
from tests.faults.sites import Fault

TOOL = import_floors.ROOT  # where this package of tests is
PLUGIN = "tests.faults.plugin"

# Coverage's `patch = subprocess` hands the settings of the parent down to child processes as they
# are. With COVERAGE_PROCESS_START each child reads this file, and has in its environment the test
# that started it. Nothing that coverage.py warns of is a reason for a test to fail.
_SETTINGS = """
[run]
source_dirs = {sources}
data_file = {out}
parallel = true
core = ctrace
context = ${{PYTEST_CURRENT_TEST-}}
patch =
  fork
  _exit
disable_warnings =
  already-imported
  module-not-imported
  module-not-measured
  no-data-collected
  no-source
  trace-changed
"""


def environment(root: pathlib.Path) -> dict[str, str]:
    """Processes with this environment import the package of a checkout, from whatever folder."""
    ours = ("COVERAGE_", "FAULTS_", "PYTEST_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    paths = [str(root), str(TOOL), *filter(None, [kept.get("PYTHONPATH")])]
    drawn = {drawing.DRAW: drawing.seed_of_commit()}  # the copies of a checkout have no git
    return {**kept, **drawn, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def record(root: pathlib.Path, out: pathlib.Path, arguments: Sequence[str]) -> tuple[int, float]:
    """Run the suite, and write what each test reaches.

    Returns:
        Pytest's exit status, and how many percent of the package's lines were run.
    """
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    for old in out.parent.glob(out.name + "*"):
        old.unlink()
    folders = (root.resolve() / f for f in (import_floors.PACKAGE, *import_floors.BESIDE))
    sources = "\n  ".join(str(f) for f in folders if f.is_dir())
    with tempfile.TemporaryDirectory() as folder:
        log, settings = pathlib.Path(folder, "log"), pathlib.Path(folder, "coveragerc")
        places = {"sources": sources, "out": str(out)}
        escaped = {name: place.replace("$", "$$") for name, place in places.items()}
        settings.write_text(_SETTINGS.format(**escaped))
        started = {**environment(root), "COVERAGE_PROCESS_START": str(settings), LOG: str(log)}
        command = [sys.executable, "-m", "pytest", "-p", PLUGIN, *arguments]
        status = subprocess.run(command, cwd=root, env=started).returncode
        measured = coverage.Coverage(config_file=str(settings))
        measured.combine()
        measured.save()
        _add_tests(out, read_log(log))
        percent = measured.report(file=io.StringIO(), ignore_errors=True)
    return status, percent


def read_log(path: pathlib.Path) -> list[dict]:
    """What the plugin has written; the process may have been killed in its last line."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _add_tests(out: pathlib.Path, log: Iterable[dict]) -> None:
    """A table beside coverage's: how long each test took, and whether it passed."""
    seconds: collections.Counter[str] = collections.Counter()
    failed = set()
    for entry in log:
        if test := entry.get("test"):
            seconds[test] += entry["seconds"]
            failed |= {test} if entry["outcome"] == "failed" else set()
    with sqlite3.connect(out) as data:
        data.execute("CREATE TABLE test (id text PRIMARY KEY, seconds real, passed boolean)")
        rows = [(test, taken, test not in failed) for test, taken in seconds.items()]
        data.executemany("INSERT INTO test VALUES (?, ?, ?)", rows)
    data.close()


class Reach:
    """What was recorded; it may have been in another checkout of the same text."""

    def __init__(self, path: pathlib.Path) -> None:
        self._data = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        rows = self._data.execute("SELECT id, seconds FROM test WHERE passed")
        self.seconds: dict[str, float] = dict(rows)
        self._tests = {i: _test_of(c) for i, c in self._data.execute("SELECT * FROM context")}
        self._files = {str(p): i for i, p in self._data.execute("SELECT id, path FROM file")}
        self.lines: collections.Counter[str] = collections.Counter()  # that each test reaches
        for context, bits in self._data.execute("SELECT context_id, numbits FROM line_bits"):
            self.lines[self._tests[context]] += int.from_bytes(bits).bit_count()

    def tests(self, fault: Fault) -> list[str]:
        """The tests that reach what is wrong, or else the statement that it is in.

        Lines that run only while the package is imported are reached by every test of the file.
        """
        reached = self._by_line(fault.path)
        for first, last in (fault.lines, fault.statement):
            found = set().union(*(reached[line] for line in range(first, last + 1)))
            if found == {""}:
                found = set().union(*reached.values())
            if found:
                return sorted(found & self.seconds.keys())
        return []

    def _by_line(self, path: str) -> dict[int, set[str]]:
        ours = [known for known in self._files if f"/{known}".endswith(f"/{path}")]
        found: dict[int, set[str]] = collections.defaultdict(set)
        if ours:
            query = "SELECT context_id, numbits FROM line_bits WHERE file_id = ?"
            file = self._files[min(ours, key=len)]
            for context, bits in self._data.execute(query, [file]):
                for line in numbits_to_nums(bits):
                    found[line].add(self._tests[context])
        return found


def _test_of(context: str) -> str:
    """The test of a context, which in child processes ends in what the parent was at."""
    return re.sub(r" \((setup|call|teardown)\)$", "", context)


def choose(tests: Sequence[str], reach: Reach, path: str, seconds: float, most: int) -> list[str]:
    """Some of the tests, the most specific ones first, which do not take longer than `seconds`.

    A test is the more specific the fewer lines it reaches. The files of tests take turns, so that
    not all are of one kind; those that have the name of the faulty file come first.
    """
    by_file: dict[str, list[str]] = collections.defaultdict(list)
    for test in sorted(tests, key=lambda test: (reach.lines[test], test)):
        by_file[test.partition("::")[0]].append(test)
    named = f"test_{pathlib.Path(path).stem}"
    files = sorted(by_file, key=lambda file: pathlib.Path(file).stem != named)
    ranks = {test: rank for of_file in by_file.values() for rank, test in enumerate(of_file)}
    turns = sorted((t for file in files for t in by_file[file]), key=lambda test: ranks[test])
    chosen, taken = [], 0.0
    for test in turns:
        taken += reach.seconds[test]
        if chosen and (taken > seconds or len(chosen) == most):
            break
        chosen.append(test)
    order = {file: place for place, file in enumerate(files)}
    return sorted(chosen, key=lambda test: (order[test.partition("::")[0]], ranks[test]))
