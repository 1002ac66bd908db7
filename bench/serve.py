"""An inference serving loop: client threads and one compiled model, a BERT or a GPT-2.

`python -m bench serve` lets `--clients` threads send requests for `--seconds` seconds, each when
its last one is answered: in `--turns` turns, in which each backend, in a process of its own, gets
the same requests in the same order, as many as it can answer. What a request is, and how it is
answered, is in `bench.server`. Printed for each model and backend: how long the warm-up took,
latencies as clients see them, requests a second, compilations after the warm-up, and growth of
memory.
"""

import argparse
import contextlib
import math
import tempfile
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.processes import Worker, WorkerFailed, environment_of, failing
from bench.timing import above_zero, add_limits, add_settings, positive

SERVED = ("bert", "gpt2")
BACKENDS = ("eager", "inductor", "openxla")


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--models", nargs="+", default=list(SERVED), choices=SERVED)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    add_settings(parser, sizes=("small", "full", "tiny"))
    add_limits(parser)
    parser.add_argument("--clients", type=positive, default=8)
    parser.add_argument("--seconds", type=above_zero, default=60, help="for each backend")
    parser.add_argument("--turns", type=positive, default=3, help="that these are served in")
    parser.add_argument("--pad", choices=("none", "openxla", "all"), default="none", help="whom")


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, and print; the exit status: 1 if a backend failed."""
    return max(_serve(model, options, console) for model in options.models)


def _serve(model: str, options: argparse.Namespace, console: Console) -> int:
    clients, threads = f"{options.clients} clients", f"{options.threads} torch threads"
    table = Table("", title=f"serving {model} ({options.size}), {clients}, {threads}")
    loops = _Loops(model, options, console)
    columns = loops.measure()
    for backend in options.backends:
        table.add_column(backend, justify="right")
    for row in ("warm-up s", "p50 ms", "p99 ms", "requests/s", "compiles", "growth MB"):
        figures = [columns.get(b, {}).get(row) for b in options.backends]
        table.add_row(row, *("-" if f is None else f"{f:.4g}" for f in figures))
    console.print(table)
    for backend, failure in loops.failures.items():
        console.print(f"{backend}: {failure.status}: {failure}", markup=False)
    return int(bool(loops.failures))


class _Loops:
    """The processes of the backends, which serve in turns: the machine's pace may change."""

    def __init__(self, model: str, options: argparse.Namespace, console: Console) -> None:
        self.model, self.options, self.console = model, options, console
        self.failures: dict[str, WorkerFailed] = {}
        self._workers: dict[str, Worker] = {}

    def measure(self) -> dict[str, dict[str, float]]:
        """What is printed of each backend that does not fail."""
        warm: dict[str, float] = {}
        latencies: dict[str, list[float]] = {b: [] for b in self.options.backends}
        served = dict.fromkeys(self.options.backends, 0.0)
        with contextlib.ExitStack() as stack, self.console.status("") as status:
            caches = stack.enter_context(tempfile.TemporaryDirectory())
            for backend in self.options.backends:
                status.update(f"{self.model}, {backend}: warm-up")
                with self._failing(backend):
                    warm[backend] = self._start(backend, caches, stack)
            for turn in range(self.options.turns):
                first = turn % len(served)
                for backend in [*served][first:] + [*served][:first]:
                    if backend not in self._workers:
                        continue
                    where = f"{self.model}, {backend}: turn {turn + 1}"
                    status.update(f"{where} of {self.options.turns}")
                    seconds = self.options.seconds / self.options.turns
                    with self._failing(backend):
                        reply = self._ask(backend, "take_turn", number=turn, seconds=seconds)
                        latencies[backend] += reply["latencies"]
                        served[backend] += reply["seconds"]
            columns = {}
            for backend in [*self._workers]:
                with self._failing(backend):
                    facts = self._ask(backend, "facts")
                    columns[backend] = {
                        "warm-up s": warm[backend],
                        "p50 ms": 1e3 * centile(latencies[backend], 50),
                        "p99 ms": 1e3 * centile(latencies[backend], 99),
                        "requests/s": len(latencies[backend]) / served[backend],
                        "compiles": facts["compiles"],
                        "growth MB": facts["growth"] / 1e6,
                    }
        return columns

    def _start(self, backend: str, caches: str, stack: contextlib.ExitStack) -> float:
        environment = environment_of(self.options.threads, f"{caches}/{backend}")
        limit = self.options.memory_limit
        worker = Worker(environment=environment, memory_gb=limit, module="bench.server")
        self._workers[backend] = stack.enter_context(worker)
        pads = self.options.pad in ("all", backend)
        settings = {k: getattr(self.options, k) for k in ("size", "clients", "threads")}
        self._ask(backend, "prepare", backend=backend, model=self.model, pads=pads, **settings)
        return self._ask(backend, "warm_up")["seconds"]

    def _ask(self, name: str, what: str, /, **arguments: Any) -> dict[str, Any]:
        return self._workers[name].ask(what, self.options.time_limit, **arguments)

    def _failing(self, backend: str) -> contextlib.AbstractContextManager[None]:
        return failing(backend, self._workers, self.failures)


def centile(samples: list[float], number: int) -> float:
    """The value that so many percent of samples do not exceed."""
    return sorted(samples)[max(math.ceil(len(samples) * number / 100) - 1, 0)]
