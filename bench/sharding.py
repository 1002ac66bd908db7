"""A Llama block sharded over virtual devices: partitioning, compile time, and bytes of collectives.

`python -m bench sharding` compiles a training step (forward, backward and SGD, float32) by each
recipe for 1, 2, 4, 8, 16 and 32 devices of the CPU, each number in a process of its own, runs it
once and compares the loss with eager's. `--compiled-only` are numbers of devices for which nothing
is run. The collectives are read from the optimized HLO (`bench.collective_bytes`); what the
sharding predicts is in `bench.sharding_prediction`. docs/sharding-at-scale.md explains the figures.
"""

import argparse
import contextlib
import dataclasses
import datetime
import itertools
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.processes import ROOT, Worker, WorkerFailed, environment_of, failing
from bench.results import describe_run
from bench.sharding_prediction import RECIPES, Sizes, mesh_shape, textbook
from bench.timing import add_limits, positive

Record = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--devices", type=positive, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--compiled-only", type=positive, nargs="*", default=[1024])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument(
        "--rounds", type=positive, default=3, help="compilations, of which the fastest counts"
    )
    for field in dataclasses.fields(Sizes):
        parser.add_argument(f"--{field.name}", type=positive, default=field.default)
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    add_limits(parser)
    parser.add_argument(
        "--output", type=pathlib.Path, help="default: bench/results/DATE-sharding-float32.jsonl"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, write the lines, and print; the exit status: 1 if a program failed or was wrong."""
    sizes = Sizes(**{f.name: getattr(options, f.name) for f in dataclasses.fields(Sizes)})
    day = datetime.date.today().isoformat()
    path = options.output or ROOT / "bench" / "results" / f"{day}-sharding-float32.jsonl"
    settings = {"sizes": dataclasses.asdict(sizes), "rounds": options.rounds}
    first = describe_run(_command(options), {**settings, "threads": options.threads})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**first, "load": _load()}) + "\n")
    samples: list[Record] = []
    failures: dict[str, WorkerFailed] = {}
    with console.status("") as status:
        for record in _measured(sizes, options, failures, status.update):
            samples.append(record)
            with path.open("a") as file:  # a run that is killed leaves what it knows
                file.write(json.dumps(record) + "\n")
    records = fastest(samples)
    console.print(times_table(records))
    console.print(bytes_table(records, sizes))
    console.print(f"load average {_load()}; wrote {path}")
    for devices, failure in failures.items():
        console.print(f"{devices} devices: {failure.status}: {failure}", markup=False)
    wrong = [r for r in records if r["error"] is not None and r["error"] > 1e-4]
    for record in wrong:
        console.print(f"{record['recipe']}, {record['devices']}: loss off by {record['error']:.1e}")
    return int(bool(failures or wrong))


def _load() -> list[float]:
    """How busy the machine is: the load averages of the last 1, 5 and 15 minutes."""
    return [round(n, 1) for n in os.getloadavg()]


def _recipes(chosen: list[str], devices: int, sizes: Sizes) -> list[str]:
    """The recipes whose meshes divide the sizes. One device is measured once, unsharded."""
    if devices == 1:
        return ["data"]
    return [recipe for recipe in chosen if _applies(recipe, devices, sizes)]


def _applies(recipe: str, devices: int, sizes: Sizes) -> bool:
    shape = dict(zip(RECIPES[recipe], mesh_shape(recipe, devices), strict=True))
    if len(shape) == 2 and 1 in shape.values():
        return False  # that is another recipe
    return sizes.heads % shape.get("model", 1) == 0


def _measured(
    sizes: Sizes,
    options: argparse.Namespace,
    failures: dict[str, WorkerFailed],
    tell: Callable[[str], None],
) -> Iterator[Record]:
    """The figures of each round, number of devices and recipe.

    Each number of devices has a process of its own. They take turns, since the machine's pace may
    change, and each is stopped while another's turn is.
    """
    counts = {str(n): True for n in options.devices}
    counts.update({str(n): False for n in options.compiled_only})
    given = {"sizes": dataclasses.asdict(sizes), "threads": options.threads}
    patience = options.time_limit
    with contextlib.ExitStack() as stack:
        caches = stack.enter_context(tempfile.TemporaryDirectory())
        workers: dict[str, Worker] = {}
        turns = itertools.product(range(-1, options.rounds), counts)
        for turn, devices in turns:
            recipes = _recipes(options.recipes, int(devices), sizes)
            if not recipes or devices in failures:
                continue
            with failing(devices, workers, failures):
                if turn < 0:
                    tell(f"{devices} devices: warm-up")
                    worker = stack.enter_context(_worker(devices, caches, options))
                    workers[devices] = worker
                    worker.ask("prepare", patience, devices=int(devices), **given)
                    # What is first in a process is slower: XLA and torch prepare themselves.
                    worker.ask("measure", patience, recipe=recipes[0], runs=False)
                    continue
                for recipe in recipes:
                    tell(f"turn {turn + 1} of {options.rounds}: {devices} devices, {recipe}")
                    runs = counts[devices] and not turn
                    figures = workers[devices].ask("measure", patience, recipe=recipe, runs=runs)
                    known = {"devices": int(devices), "recipe": recipe, "turn": turn}
                    yield {**known, "load": _load()[0], **figures}


def _worker(devices: str, caches: str, options: argparse.Namespace) -> Worker:
    environment = {**environment_of(options.threads, caches), "CPU_NUM_DEVICES": devices}
    limit = options.memory_limit
    return Worker(environment=environment, memory_gb=limit, module="bench.sharding_block")


def fastest(samples: list[Record]) -> list[Record]:
    """One record for each number of devices and recipe: the first, with the least times of all.

    The least and not the median: whatever else runs on the machine only adds.
    """
    found: dict[tuple[int, str], Record] = {}
    for sample in samples:
        record = found.setdefault((sample["devices"], sample["recipe"]), dict(sample))
        for name in ("lowering", "partitioning", "xla"):
            record[name] = min(record[name], sample[name])
    return list(found.values())


def times_table(records: list[Record]) -> Table:
    """Seconds of compiling."""
    table = Table(title="a training step of a Llama block: seconds of compiling")
    one = next((r for r in records if r["devices"] == 1), None)
    for column in ("recipe", "devices", "mesh", "lowering", "partitioning", "XLA", "XLA / one's"):
        table.add_column(column, justify="left" if column == "recipe" else "right")
    last = ""
    for r in _in_order(records):
        if last not in ("", r["recipe"]):
            table.add_section()
        last = r["recipe"]
        over = f"{r['xla'] / one['xla']:.2f}" if one else "-"
        cells = [f"{r['lowering']:.2f}", f"{r['partitioning']:.3f}", f"{r['xla']:.2f}", over]
        table.add_row(*_named(r), *cells)
    return table


def bytes_table(records: list[Record], sizes: Sizes) -> Table:
    """What each device sends in a step, against what is predicted."""
    table = Table(title="MB that each device sends in a step, and what it holds")
    columns = ("recipe", "devices", "mesh", "collectives", "sent", "textbook")
    for column in (*columns, "sent / textbook", "arguments", "loss's error"):
        table.add_column(column, justify="left" if column in ("recipe", "collectives") else "right")
    last = ""
    for r in _in_order(records):
        if r["devices"] == 1:
            continue
        if last not in ("", r["recipe"]):
            table.add_section()
        last = r["recipe"]
        sent = sum(r["sent"].values())
        least = sum(textbook(r["recipe"], r["devices"], sizes).values())
        kinds = ", ".join(f"{n} {kind}" for kind, n in r["collectives"].items())
        error = "not run" if r["error"] is None else f"{r['error']:.0e}"
        megabytes = (f"{n / 1e6:.3f}" for n in (sent, least))
        held = f"{r['argument_bytes'] / 1e6:.2f}"
        table.add_row(*_named(r), kinds, *megabytes, f"{sent / least:.2f}", held, error)
    return table


def _in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (list(RECIPES).index(r["recipe"]), r["devices"]))


def _named(record: Record) -> tuple[str, str, str]:
    recipe = record["recipe"] if record["devices"] > 1 else "one device"
    return recipe, str(record["devices"]), "x".join(map(str, record["mesh"]))


def _command(options: argparse.Namespace) -> str:
    """What anyone can type to measure the same."""
    words = ["python -m bench sharding"]
    for name in ("devices", "compiled_only", "recipes"):
        given = " ".join(f"'{v}'" if " " in str(v) else str(v) for v in getattr(options, name))
        words.append(f"--{name.replace('_', '-')} {given}".strip())
    names = ["rounds", *(f.name for f in dataclasses.fields(Sizes)), "threads"]
    return " ".join([*words, *(f"--{name} {getattr(options, name)}" for name in names)])
