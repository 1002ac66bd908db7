"""The processes that run torch's tests: started, given one test after the other, and replaced."""

import dataclasses
import multiprocessing
import os
import pathlib
import socket
import tempfile
import time
from typing import Any

from bench.torch_distributed.worker import Place, work

# What a server imports once, of which each process is a fork.
IMPORTED = ["torch", "torch.distributed", "torch.distributed.tensor", "jax", "xla_dynamo.spmd"]
SECONDS_TO_START = 180
SECONDS_FOR_OTHERS = 5  # after one has failed
LATE = "takes longer than"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a test.

    Attributes:
        name: class and method.
        how: "passed", "skipped" or "failed".
        why: the reason, or the end of the trace.
        seconds: how long it took.
    """

    name: str
    how: str
    why: str
    seconds: float


class Crew:
    """So many processes, in which tests of one module run."""

    _is_new = True  # no test has run in these processes

    def __init__(self, size: int, module: str, folders: tuple[str, ...], device: str) -> None:
        """Start the processes.

        Raises:
            RuntimeError: one of them does not load the module.
        """
        self._given = (size, module, folders, device)
        self._folder = tempfile.TemporaryDirectory()
        self._number = 0
        self.tests: list[tuple[str, str, int]] = []
        self._start()

    def _start(self) -> None:
        size, module, folders, device = self._given
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._processes, self._pipes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            place = Place(rank, size, port, module, folders, device, self._folder.name)
            process = context.Process(target=work, args=(place, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        answers = self._answers(range(size), time.monotonic() + SECONDS_TO_START)
        if not all(isinstance(a, list) for a in answers):
            self.stop()
            told = [a for a in answers if isinstance(a, str)]
            raise RuntimeError(told[0] if told else f"{LATE} {SECONDS_TO_START} s")
        self.tests, self._is_new = answers[0], True

    def run(self, kind: str, test: str, size: int, seconds: float) -> Outcome:
        """Run a test in the first processes; if it fails, once more in new ones."""
        name, begin = f"{kind}.{test}", time.monotonic()
        how, why = "skipped", f"for {size} processes"
        if size <= self._given[0]:
            how, why = self._run_once(kind, test, size, seconds)
            if how == "failed" and not self._is_new and not why.startswith(LATE):
                self.renew()
                how, why = self._run_once(kind, test, size, seconds)
            if how == "failed":
                self.renew()
            else:
                self._is_new = False
        return Outcome(name, how, why, round(time.monotonic() - begin, 2))

    def _run_once(self, kind: str, test: str, size: int, seconds: float) -> tuple[str, str]:
        self._number += 1
        file = pathlib.Path(self._folder.name) / f"store-{self._number}"
        for part in ("barrier", "test_dir", "init_dir"):
            os.makedirs(f"{file}.folder/{part}")
        ranks = range(size)
        for rank in ranks:
            self._pipes[rank].send((kind, test, str(file)))
        answers = self._answers(ranks, time.monotonic() + seconds)
        for how in ("failed", "passed", "skipped"):
            for rank, answer in zip(ranks, answers, strict=True):
                if answer is not None and answer[0] == how:
                    late = [r for r in ranks if answers[r] is None]
                    if how != "failed" and late:
                        return "failed", f"processes {late} do not end; {rank} has {how}"
                    return how, answer[1]
        return "failed", f"{LATE} {seconds:.0f} s"

    def _answers(self, ranks: range, end: float) -> list[Any]:
        """What the processes answer, None for those that do not; fewer seconds after a failure."""
        answers: dict[int, Any] = {}
        while len(answers) < len(ranks) and time.monotonic() < end:
            for rank in ranks:
                if rank in answers or not self._pipes[rank].poll(0.02):
                    continue
                try:
                    answers[rank] = self._pipes[rank].recv()
                except (EOFError, ConnectionError):
                    answers[rank] = ("failed", f"process {rank} has ended itself")
                if answers[rank][0] == "failed":
                    end = min(end, time.monotonic() + SECONDS_FOR_OTHERS)
        return [answers.get(rank) for rank in ranks]

    def renew(self) -> None:
        """End the processes, and start others."""
        self._end()
        self._start()

    def stop(self) -> None:
        """End the processes, for good."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        for process, pipe in zip(self._processes, self._pipes, strict=True):
            process.kill()
            process.join()
            pipe.close()
