"""An inference serving loop: client threads and one compiled BERT.

`python -m bench serve` lets `--clients` threads send requests for `--seconds` seconds, each when
its last one is answered. A request is a batch of 1 to 16 texts of 16 to 256 tokens, both drawn with
a bias to the small. The server calls the model, one call at a time. For openxla it pads texts to
the next multiple of 16 tokens (a mask hides the padding) and cuts batches into 16, 8, 4, 2 and 1,
since each size is an executable of its own; the others take sizes as they come, unless `--pad all`.
Printed for each backend, in a process of its own: latencies as clients see them, requests a second,
compilations after the warm-up, and growth of memory.
"""

import argparse
import json
import random
import statistics
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.models import build
from bench.timing import above_zero, add_settings, last_line, positive, set_threads

BACKENDS = ("eager", "inductor", "openxla")
LENGTHS = range(16, 257, 16)
BATCHES = (1, 2, 4, 8, 16)
# A batch is filled up rather than cut where no more tokens than this are wasted.
WASTE = 64


def request(draw: random.Random, longest: int) -> tuple[int, int]:
    """The batch and the length of a request; half of them are below 4 and 64."""
    return round(16 ** draw.random()), min(round(16 * 16 ** draw.random()), longest)


class Server:
    """Answers requests, one call of the model at a time."""

    def __init__(self, model: Callable[..., Any], longest: int, pads: bool) -> None:
        self.model, self.pads = model, pads
        self.lengths = [n for n in LENGTHS if n <= longest]
        self.turn = threading.Lock()

    def answer(self, ids: torch.Tensor) -> torch.Tensor:
        """The model's output for the texts `ids`, [batch, length]."""
        with self.turn, torch.no_grad():
            if not self.pads:
                return self._call(ids, torch.ones_like(ids))
            return torch.cat([self._padded(piece) for piece in ids.split(pieces(*ids.shape))])

    def _padded(self, ids: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        rows = next(b for b in BATCHES if b >= batch)
        columns = next(n for n in self.lengths if n >= length)
        padded, mask = torch.zeros(2, rows, columns, dtype=torch.long)
        padded[:batch, :length] = ids
        mask[:, :length] = 1
        return self._call(padded, mask)[:batch, :length]

    def _call(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask).logits


def pieces(batch: int, length: int) -> list[int]:
    """How a batch is cut into sizes that are compiled, the last one filled up."""
    cut: list[int] = []
    while batch:
        above = next(b for b in BATCHES if b >= batch)
        below = max(b for b in BATCHES if b <= batch)
        cut.append(batch if (above - batch) * length <= WASTE else below)
        batch -= cut[-1]
    return cut


def serve(backend: str, size: str, clients: int, seconds: float, pads: bool) -> dict[str, float]:
    """Run the loop; what is printed."""
    model = build("bert", size)
    longest = model.config.max_position_embeddings
    compiled = model
    if backend != "eager":
        options = {"max_executables": 128} if backend == "openxla" else None
        compiled = torch.compile(model, backend=backend, dynamic=True, options=options)
    server = Server(compiled, longest, pads)
    warm = time.perf_counter()
    for rows in BATCHES:
        for columns in server.lengths:
            server.answer(torch.ones(rows, columns, dtype=torch.long))
    warm = time.perf_counter() - warm
    _check(server, model)
    compiled_before, memory_before = compilations(), resident()
    latencies: list[float] = []
    end = time.perf_counter() + seconds

    def client(number: int) -> None:
        draw = random.Random(number)
        while time.perf_counter() < end:
            ids = torch.randint(0, 99, request(draw, longest))
            start = time.perf_counter()
            server.answer(ids)
            latencies.append(time.perf_counter() - start)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    centiles = statistics.quantiles(latencies, n=100)
    return {
        "warm-up s": warm,
        "p50 ms": centiles[49] * 1e3,
        "p99 ms": centiles[98] * 1e3,
        "requests/s": len(latencies) / seconds,
        "compiles": compilations() - compiled_before,
        "growth MB": (resident() - memory_before) / 1e6,
    }


def _check(server: Server, model: torch.nn.Module) -> None:
    ids = torch.randint(0, 99, (3, 50))
    with torch.no_grad():
        expected = model(input_ids=ids).logits
    torch.testing.assert_close(server.answer(ids), expected, rtol=1e-3, atol=1e-3)


def compilations() -> int:
    """How often this process compiled: graphs of Dynamo, and executables of openxla."""
    from torch._dynamo.utils import counters

    from xla_dynamo.runtime import metrics

    return counters["stats"]["unique_graphs"] + metrics.counter_value("UncachedCompile")


def resident() -> int:
    """The memory that this process has now, in bytes."""
    import psutil

    return psutil.Process().memory_info().rss


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--alone", choices=BACKENDS, help="this one, in this process, as JSON")
    add_settings(parser)
    parser.add_argument("--clients", type=positive, default=8)
    parser.add_argument("--seconds", type=above_zero, default=60)
    parser.add_argument("--pad", choices=("openxla", "all"), default="openxla", help="for whom")


def run(options: argparse.Namespace, console: Console) -> None:
    """Measure each backend in a process of its own, and print."""
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    if options.alone:
        pads = options.pad == "all" or options.alone == "openxla"
        figures = serve(options.alone, options.size, options.clients, options.seconds, pads)
        print(json.dumps(figures))
        return
    settings = (
        f"--size {options.size} --clients {options.clients} --seconds {options.seconds} "
        f"--pad {options.pad} --threads {options.threads}"
    )
    table = Table(title=f"serving BERT, {options.clients} clients, {options.threads} torch threads")
    table.add_column("")
    columns: dict[str, dict[str, float]] = {}
    for backend in options.backends:
        table.add_column(backend, justify="right")
        alone = ("serve", "--alone", backend, *settings.split())
        columns[backend] = json.loads(last_line("bench", *alone))
    for row in next(iter(columns.values())):
        table.add_row(row, *(f"{columns[b][row]:.4g}" for b in options.backends))
    console.print(table)
