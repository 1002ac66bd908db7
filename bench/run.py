"""Models against backends: each in a process of its own, correctness first, rounds in turn.

For each model the workers (`bench.worker`) of all backends live at once. One after the other they
build the model and call it cold, and are compared with eager in float64. Then all take turns at
timed rounds, so that what is compared was measured under the same load. Workers that wait are
stopped, as threads of a pool spin for a while after their work, and each round begins after a
pause. Otherwise runtimes with pools of their own take cores from one another.
"""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.backends import BACKENDS
from bench.peers import python_of
from bench.processes import Worker, WorkerFailed, environment_of, failing
from bench.results import Record
from bench.worker import GOLDEN, Task

# As torch's own runner: an error may be this many times eager's, and a tenth of the tolerance more.
MULTIPLE = 3.0
WEIGHTS = "weights.pt"
TOLERANCES = {"float32": 1e-4, "bfloat16": 1e-2}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds on each worker: seconds for anything it is asked, gigabytes at any time."""

    seconds: float = 900.0
    memory_gb: float = 12.0


def measure(
    task: Task,
    backends: Sequence[str],
    limits: Limits,
    say: Callable[[str], None],
    rounds: int,
    seconds: float,
    pause: float = 0.0,
) -> Record:
    """Everything about a model: a line of the results.

    Each backend has so many rounds of so many seconds, each after a pause of so many.

    Where a training step is wrong, all is measured again on other inputs, and what came first is
    kept as "before". With an activation a rounding away from relu's kink, gradients on both sides
    are right and differ by a hundredth; a mistake of a compiler is there on all inputs.
    """
    record = ModelRun(task, backends, limits, say).measure(rounds, seconds, pause)
    wrong = any(entry.get("status") == "wrong" for entry in record["backends"].values())
    if not wrong or task.mode != "training":
        return record
    others = dataclasses.replace(task, seed=task.seed + 1)
    again = ModelRun(others, backends, limits, say).measure(rounds, seconds, pause)
    return {**again, "before": record}


class ModelRun:
    """The workers of one model."""

    def __init__(
        self, task: Task, backends: Sequence[str], limits: Limits, say: Callable[[str], None]
    ) -> None:
        self.task, self.limits, self.say = task, limits, say
        self.rows: dict[str, Record] = {name: {} for name in backends}
        self.workers: dict[str, Worker] = {}
        self.failures: dict[str, WorkerFailed] = {}

    def measure(self, rounds: int, seconds: float, pause: float = 0.0) -> Record:
        """What each backend takes on the inputs of this task."""
        with contextlib.ExitStack() as stack:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            golden = self._golden(folder)
            for name in self.rows:
                self.say(f"compiling with {name}")
                with self._failing(name):
                    self._start(name, folder, golden, stack)
            self._time(rounds, seconds, pause)
            for name, worker in self.workers.items():
                with self._failing(name):
                    facts = worker.ask("facts", self.limits.seconds)
                    self.rows[name].update({"status": "ok", **facts})
        for name, failure in self.failures.items():
            self.rows[name].update(status=failure.status, message=str(failure)[:500])
        return {**dataclasses.asdict(self.task), "backends": self.rows}

    def _golden(self, folder: pathlib.Path) -> pathlib.Path | None:
        self.say("float64, to compare with")
        path = folder / "golden.pt"
        try:
            with self._worker(folder, python_of("")) as worker:
                self._prepare(worker, GOLDEN)
                if any(BACKENDS[name].environment for name in self.rows):
                    worker.ask("save_weights", self.limits.seconds, path=str(folder / WEIGHTS))
                worker.ask("first", self.limits.seconds)
                worker.ask("save", self.limits.seconds, path=str(path))
        except WorkerFailed:
            return None
        return path

    def _start(
        self, name: str, folder: pathlib.Path, golden: pathlib.Path | None, stack: Any
    ) -> None:
        environment = BACKENDS[name].environment
        worker = stack.enter_context(self._worker(folder, python_of(environment)))
        weights = {"weights": str(folder / WEIGHTS)} if environment else {}
        self._prepare(worker, name, **weights)
        first = worker.ask("first", self.limits.seconds)
        row = self.rows[name]
        row.update(cold_s=first.pop("seconds"), **first)
        if golden is None:
            raise WorkerFailed("unchecked", "the model does not run in float64")
        row["error"] = worker.ask("compare", self.limits.seconds, path=str(golden))["error"]
        allowed = self._allowed()
        if not row["error"] <= allowed:
            message = f"error {row['error']:.1e} where {allowed:.1e} is allowed"
            raise WorkerFailed("wrong", message)
        self.workers[name] = worker

    def _allowed(self) -> float:
        eager = self.rows.get("eager", {}).get("error", 0.0)
        return MULTIPLE * eager + TOLERANCES[self.task.dtype] / 10

    def _prepare(self, worker: Worker, backend: str, **more: str) -> None:
        task = dataclasses.asdict(self.task)
        worker.ask("prepare", self.limits.seconds, task=task, backend=backend, **more)

    def _worker(self, folder: pathlib.Path, python: str) -> Worker:
        environment = environment_of(self.task.threads, folder / "inductor")
        environment["PJRT_DEVICE"] = os.environ.get("PJRT_DEVICE", "CPU")  # torch_xla asks for it
        return Worker(environment=environment, python=python, memory_gb=self.limits.memory_gb)

    def _time(self, rounds: int, seconds: float, pause: float) -> None:
        for round_ in range(rounds + 1):  # the first finds out how many calls make a round
            self.say(f"round {round_} of {rounds}")
            order = list(self.workers)
            turn = round_ % max(len(order), 1)
            for name in order[turn:] + order[:turn]:
                with self._failing(name):
                    time.sleep(pause)
                    reply = self.workers[name].ask(
                        "time", self.limits.seconds, seconds=seconds, fresh=round_ == 0
                    )
                    if round_:
                        self.rows[name].setdefault("ms", []).append(reply["seconds"] * 1e3)

    def _failing(self, name: str) -> contextlib.AbstractContextManager[None]:
        return failing(name, self.workers, self.failures)
