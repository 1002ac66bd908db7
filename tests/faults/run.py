"""What the suite makes of each fault: the tests that reach it are run, with the fault put in."""

import dataclasses
import json
import pathlib
import queue
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

from tests.faults.copies import Copy, Run
from tests.faults.reach import Reach, choose
from tests.faults.sites import Fault

FOUND, HANG, NOT_FOUND = "found", "found (hang)", "not found"
NOT_REACHED, UNCLEAR = "not reached", "unclear"


@dataclasses.dataclass(frozen=True)
class Settings:
    """How each fault is examined."""

    limit: float = 240  # seconds a fault
    tests: int = 300  # at most
    arguments: tuple[str, ...] = ()  # more of pytest's


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a fault."""

    result: str
    test: str | None = None  # that found it
    seconds: float = 0.0  # until it was found, or until all tests had run
    ran: int = 0  # how many tests ended before
    chosen: int = 0
    reaching: int = 0  # how many tests reach it
    output: str = ""  # the end of pytest's


@dataclasses.dataclass
class WithoutFault:
    """Tests that were run in a copy without a fault, or are not there."""

    right: set[str] = dataclasses.field(default_factory=set)
    wrong: set[str] = dataclasses.field(default_factory=set)


class Examiner:
    """Runs tests in a copy. Only a test that passes without the fault can find it."""

    def __init__(self, copy: Copy, reach: Reach, settings: Settings, without: WithoutFault) -> None:
        self._copy, self._reach, self._settings = copy, reach, settings
        self._without = without

    def examine(self, fault: Fault, reaching: Sequence[str]) -> Outcome:
        """Run the tests that reach a fault, in turn up to the first that finds it."""
        for _ in range(5):
            usable = [test for test in reaching if test not in self._without.wrong]
            if not usable:
                return Outcome(NOT_REACHED, reaching=len(reaching))
            # The times that are known were taken in a slower run. The rest of the limit is for the
            # start, and for what the fault slows down.
            given = self._settings
            tests = choose(usable, self._reach, fault.path, given.limit / 2, given.tests)
            with self._copy.with_fault(fault):
                run = self._copy.run(tests, given.arguments, given.limit)
            result = self._result(run, tests)
            if result is not None:
                outcome = Outcome(result, run.at, run.seconds, run.ran, len(tests), len(reaching))
                shown = "" if result == NOT_FOUND else run.output
                return dataclasses.replace(outcome, output=shown)
        return Outcome(UNCLEAR, chosen=len(tests), reaching=len(reaching), output=run.output)

    def _result(self, run: Run, tests: Sequence[str]) -> str | None:
        """None if tests have to be left out, since they fail without the fault too."""
        if run.passed:
            return NOT_FOUND
        if run.late and not self._hangs(run):
            return NOT_FOUND  # within the limit
        if run.at in tests:
            right = run.at in self._without.right or self._passes([run.at])
            (self._without.right if right else self._without.wrong).add(run.at)
        else:  # the package, or a file of tests, cannot be imported
            given = self._settings
            collecting, known = self._copy.collected(tests, given.arguments, given.limit)
            unknown = set(tests) - known
            if not collecting.passed:
                return UNCLEAR
            self._without.wrong |= unknown
            right = not unknown
        if not right:
            return None
        return HANG if run.late else FOUND

    def _hangs(self, run: Run) -> bool:
        """Whether one test, or the import of the package, took far longer than it should."""
        if run.at is None:
            return not run.ran
        usual = self._reach.seconds.get(run.at, 0.0)
        return run.at_seconds > min(30, self._settings.limit / 4) + 3 * usual

    def _passes(self, tests: Sequence[str]) -> bool:
        given = self._settings
        return self._copy.run(tests, given.arguments, given.limit).passed


def examine_all(
    root: pathlib.Path, faults: Sequence[Fault], reach_file: pathlib.Path, settings: Settings,
    jobs: int,
) -> Iterator[tuple[Fault, Outcome]]:  # fmt: skip
    """The faults with their outcomes, as they come; each job has a copy of the checkout."""
    reach = Reach(reach_file)
    reaching = {fault: reach.tests(fault) for fault in faults}
    free: queue.SimpleQueue[Examiner] = queue.SimpleQueue()

    def examine(fault: Fault) -> Outcome:
        examiner = free.get()
        try:
            return examiner.examine(fault, reaching[fault])
        finally:
            free.put(examiner)

    with (
        tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder,
        futures.ThreadPoolExecutor(jobs) as pool,
    ):
        without = WithoutFault()
        copies = [Copy(root, pathlib.Path(folder, str(job))) for job in range(jobs)]
        for copy in copies:
            free.put(Examiner(copy, reach, settings, without))
        work = {pool.submit(examine, fault): fault for fault in faults}
        try:
            for done in futures.as_completed(work):
                yield work[done], done.result()
        finally:  # also when the user interrupts
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.end()


class Outcomes:
    """A file of faults with their outcomes, written anew after each."""

    def __init__(self, path: pathlib.Path, about: dict[str, object], resume: bool) -> None:
        self._path, self._about = path, about
        self.known: dict[Fault, Outcome] = {}
        if resume and path.exists():
            for entry in json.loads(path.read_text())["faults"]:
                entry["fault"] |= {k: tuple(entry["fault"][k]) for k in ("lines", "statement")}
                self.known[Fault(**entry["fault"])] = Outcome(**entry["outcome"])

    def add(self, fault: Fault, outcome: Outcome) -> None:
        """Write one more; the file is whole at any time."""
        self.known[fault] = outcome
        fields: Callable = dataclasses.asdict
        faults = [{"fault": fields(f), "outcome": fields(o)} for f, o in self.known.items()]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        new.write_text(json.dumps({**self._about, "faults": faults}, indent=1))
        new.replace(self._path)
