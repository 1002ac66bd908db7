"""Load on `xla-dynamo serve`: clients of mixed lengths, in streams, some of whom go away or err.

`python -m bench.serve_load --clients 8 --seconds 30` starts a server of its own, by default of the
tiny model, and checks each answer against `generate` alone. It serves one request at a time first,
for the ratio. `--end sigterm` and `--end sigkill` end the server in the middle of the load; behind
SIGKILL it is started again. `--sweep 1 2 4 8` measures one number of clients after another, and
`--picture FILE` draws them. Run it alone on the machine.
"""

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from bench.serve_clients import (
    Load,
    percentile,
    prompts_and_lengths,
    quantile,
    rate,
    wrong,
)
from bench.timing import positive, set_threads

# Seconds until a server that was killed has to serve again.
_AGAIN = 20
_KINDS = ("streamed", "in one piece", "of a schema", "gone away", "malformed", "too much")


class Server:
    """A server process, while it is loaded."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        """Start it, and wait until it is ready. The cache is in the folder."""
        cache = os.environ.get("XLA_DYNAMO_CACHE_DIR") or str(folder / "cache")
        command = [sys.executable, "-m", "xla_dynamo", "serve", "--port", "0", *arguments]
        environment = {**os.environ, "XLA_DYNAMO_CACHE_DIR": cache}
        start = time.perf_counter()
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.said = ""  # of its stages
        for line in self.process.stdout:
            if "sizes of batches" in line:
                self.said = line.strip()
            if line.startswith("ready"):
                self.port = int(line.rpartition(":")[2].partition("/")[0])
                break
        else:
            raise SystemExit(f"the server ended with status {self.process.wait()}")
        self.start_seconds = time.perf_counter() - start

    def resident(self) -> int:
        """The memory that it has now, in bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def compilations(self) -> float:
        """How often it has compiled since it was ready."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            text = answer.read().decode()
        families = {family.name: family for family in text_string_to_metric_families(text)}
        return float(families["xla_dynamo:compilations_since_warm_up"].samples[0].value)

    def stop(self) -> int:
        """End it; returns the exit status."""
        self.process.terminate()
        return self.process.wait(60)


class Memory:
    """What a server has, some time after a load has begun and at its end, in bytes."""

    def __init__(self, server: Server, seconds: float) -> None:
        """Take how long the load is: the first look is after a minute, or a fifth of it."""
        self._server = server
        self.after = min(60.0, seconds / 5)
        self.early = self.late = self.compiled = 0.0

    async def watch(self) -> None:
        """Take the first look in time, and others until it is cancelled."""
        await asyncio.sleep(self.after)
        self.early = self._server.resident()
        while True:
            self.late = self._server.resident()
            self.compiled = await asyncio.to_thread(self._server.compilations)
            await asyncio.sleep(0.5)


async def loaded(server: Server, load: Load, options: argparse.Namespace) -> Memory:
    """Load a server as the options say, to its end if that is wanted."""
    memory = Memory(server, options.seconds)
    watching = asyncio.create_task(memory.watch())
    if options.end == "after":
        await load.run(options.clients, options.seconds)
    else:
        number = signal.SIGTERM if options.end == "sigterm" else signal.SIGKILL

        def end() -> None:
            watching.cancel()
            server.process.send_signal(number)

        await load.run_until(options.clients, options.seconds, end)
    watching.cancel()
    return memory


def end_of(server: Server, load: Load, options: argparse.Namespace, again: Any) -> list[str]:
    """End the server, or see how it has ended; prints what happened, and returns what is wrong."""
    if options.end == "after":
        status = server.stop()
        print(f"ends with status {status}")
        return [f"exit status {status}"] if status else []
    status = server.process.wait(60)
    assert load.ended is not None
    seconds = time.perf_counter() - load.ended
    if options.end == "sigterm":
        print(f"SIGTERM under load: ends in {seconds:.1f} s with status {status}; of what was "
              f"begun, {len(load.lost)} lost")  # fmt: skip
        return [f"exit status {status}"] if status else []
    load.lost.clear()  # with the process: what counts is how soon there is another
    start = time.perf_counter()
    server = again()
    first = Load(server.port, load.prompts, load.lengths)
    asyncio.run(first.run(1, 0.0001))
    seconds = time.perf_counter() - start
    print(f"SIGKILL under load: serves again in {seconds:.1f} s ({server.said})")
    late = [f"served again in {seconds:.1f} s, not {_AGAIN}"] if seconds > _AGAIN else []
    return late + first.lost + ([f"exit status {s}"] if (s := server.stop()) else [])


def swept(server: Server, loads: dict[int, Load], seconds: float, picture: Path | None) -> None:
    """Measure one number of clients after another, print a table, and draw it."""
    table = Table(title=f"xla-dynamo serve by clients, {seconds:g} s each; milliseconds")
    names = ("clients", "tokens a second", "first, p50", "p99", "between, p50", "p99")
    for name in names:
        table.add_column(name, justify="right")
    for clients, load in loads.items():
        asyncio.run(load.run(clients, seconds))
        times = [percentile(s, p) for s in (load.first, load.between) for p in (50, 99)]
        table.add_row(str(clients), f"{rate(load):.0f}", *times)
    Console(width=None if sys.stdout.isatty() else 100).print(table)
    if picture is not None:
        draw(loads, picture)


def draw(loads: dict[int, Load], picture: Path) -> None:
    """Draw throughput and latency by the number of clients."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    clients = list(loads)
    left.plot(clients, [rate(load) for load in loads.values()], "o-")
    left.set(ylabel="tokens a second", ylim=(0, None), title="throughput")
    for name, color in (("first", "C1"), ("between", "C2")):
        label = "first token" if name == "first" else "between tokens"
        for percent, style in ((50, "o-"), (99, "o--")):
            times = [1e3 * quantile(getattr(load, name), percent) for load in loads.values()]
            right.plot(clients, times, style, color=color, label=f"{label}, p{percent}")
    right.set(ylabel="milliseconds", yscale="log", title="latency")
    right.legend(fontsize="small")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(clients, [str(n) for n in clients])
        axes.set_xlabel("clients")
        axes.grid(alpha=0.3)
    figure.savefig(picture, metadata={"Date": None} if picture.suffix == ".svg" else None)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--model", type=Path, help="a folder; without, the tiny model")
    add("--clients", type=positive, default=8)
    add("--seconds", type=float, default=30.0)
    add("--longest", type=positive, default=256, help="tokens of a request")
    add("--requests", type=positive, default=8, help="in a batch")
    ends = ("after", "sigterm", "sigkill")
    add("--end", choices=ends, default="after", help="of the server: after the load, or in it")
    add("--sweep", type=positive, nargs="+", metavar="CLIENTS", help="instead: one after another")
    add("--picture", type=Path, metavar="FILE", help="of the sweep, as .svg or .png")
    return parser.parse_args()


def report(load: Load, one: Load, options: argparse.Namespace, server: Server) -> None:
    """Print what the clients saw."""
    seconds = f"{options.seconds:g} s, starts in {server.start_seconds:.0f} s"
    table = Table(title=f"xla-dynamo serve, {seconds}")
    for column in ("", f"{options.clients} clients", "1 client"):
        table.add_column(column, justify="right" if column else "left")
    for kind in _KINDS:
        table.add_row(f"requests {kind}", *(str(each.seen[kind]) for each in (load, one)))
    table.add_row("tokens a second", *(f"{rate(each):.0f}" for each in (load, one)))
    for name, text in (("first", "first token"), ("between", "between tokens")):
        for percent in (50, 99):
            times = [percentile(getattr(each, name), percent) for each in (load, one)]
            table.add_row(f"{text}, p{percent}, ms", *times)
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def main() -> int:
    """Load a server, and print what came of it; returns 1 where something was wrong."""
    options = parsed()
    with tempfile.TemporaryDirectory() as made:
        folder = options.model or Path(made) / "tiny"
        if not options.model:
            from xla_dynamo.serving.tiny_model import write_tiny_model

            write_tiny_model(folder)
            set_threads(1)  # which is faster for a model so small
        prompts, lengths = prompts_and_lengths(options.longest)
        common = ["--model", str(folder), "--longest", str(options.longest)]
        common += ["--requests", str(options.requests), "--batch-tokens", str(8 * options.requests)]

        def started() -> Server:
            return Server(Path(made), common)

        server = started()
        if options.sweep:
            loads = {n: Load(server.port, prompts, lengths) for n in options.sweep}
            swept(server, loads, options.seconds, options.picture)
            return judged(list(loads.values()), folder, [f"{s}" for s in [server.stop()] if s])
        one, load = (Load(server.port, prompts, lengths) for _ in range(2))
        asyncio.run(one.run(1, max(options.seconds / 10, 3)))
        memory = asyncio.run(loaded(server, load, options))
        report(load, one, options, server)
        sizes = f"{memory.early / 1e6:.0f} MB after {memory.after:.0f} s, {memory.late / 1e6:.0f}"
        print(
            f"throughput: {rate(load) / rate(one):.2f} of one request at a time; memory: {sizes} "
            f"at the end; compilations: {memory.compiled:.0f}"
        )
        others = end_of(server, load, options, started)
        if memory.compiled:
            others.append(f"{memory.compiled:.0f} compilations under load")
        return judged([load, one], folder, others)


def judged(loads: list[Load], folder: Path, others: list[str]) -> int:
    """Print what was lost, truncated, mixed up or wrong; returns 1 if anything was."""
    found = wrong(loads, folder)
    lost = [text for load in loads for text in load.lost]
    found["wrong"] += [text for load in loads for text in load.faults]
    answers = sum(load.seen[kind] for load in loads for kind in _KINDS[:3])
    counts = ", ".join(f"{kind}: {len(texts)}" for kind, texts in found.items())
    print(f"of {answers} answers lost: {len(lost)}, {counts}")
    faults = [*lost, *(text for texts in found.values() for text in texts), *others]
    for fault in faults[:10]:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
