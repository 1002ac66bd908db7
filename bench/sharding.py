"""A Llama block divided over virtual devices: partitioning, compile time, and bytes of collectives.

`python -m bench sharding` compiles a training step (forward, backward and SGD, float32) by each
recipe for 1, 2, 4, 8, 16 and 32 devices of the CPU, each number in a process of its own, runs it
once and compares the loss with eager's. `--compiled-only` are numbers of devices for which nothing
is run. The collectives are read from the optimized HLO (`bench.collective_bytes`); what the
sharding predicts is in `bench.sharding_prediction`. docs/sharding-at-scale.md explains the figures.
"""

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.processes import ROOT, Worker, WorkerFailed, environment_of
from bench.results import describe_run
from bench.sharding_prediction import RECIPES, Sizes, as_compiled, mesh_shape, textbook
from bench.timing import add_limits, positive

Record = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--devices", type=positive, nargs="*", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--compiled-only", type=positive, nargs="*", default=[1024])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--rounds", type=positive, default=3, help="compilations for each median")
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
    records, failures = [], []
    counts = [(n, True) for n in options.devices] + [(n, False) for n in options.compiled_only]
    with console.status("") as status:
        for devices, runs in counts:
            try:
                for record in _measured(devices, runs, sizes, options, status.update):
                    records.append(record)
                    with path.open("a") as file:  # a run that is killed leaves what it knows
                        file.write(json.dumps(record) + "\n")
            except WorkerFailed as failure:
                failures.append(f"{devices} devices: {failure.status}: {failure}")
    console.print(times_table(records))
    console.print(bytes_table(records, sizes))
    console.print(f"load average {_load()}; wrote {path}")
    for message in failures:
        console.print(message, markup=False)
    wrong = [r for r in records if r["error"] is not None and r["error"] > 1e-4]
    for record in wrong:
        console.print(f"{record['recipe']}, {record['devices']}: loss off by {record['error']:.1e}")
    return int(bool(failures or wrong))


def _load() -> list[float]:
    """How busy the machine is: the load averages of the last 1, 5 and 15 minutes."""
    return [round(n, 1) for n in os.getloadavg()]


def _recipes(chosen: list[str], devices: int, sizes: Sizes) -> list[str]:
    """The recipes whose meshes divide the sizes. One device is measured once, undivided."""
    if devices == 1:
        return ["data"]
    return [recipe for recipe in chosen if _applies(recipe, devices, sizes)]


def _applies(recipe: str, devices: int, sizes: Sizes) -> bool:
    shape = dict(zip(RECIPES[recipe], mesh_shape(recipe, devices), strict=True))
    if len(shape) == 2 and 1 in shape.values():
        return False  # that is another recipe
    return sizes.heads % shape.get("model", 1) == 0


def _measured(
    devices: int, runs: bool, sizes: Sizes, options: argparse.Namespace, tell: Callable[[str], None]
) -> Iterator[Record]:
    """The figures of a number of devices, from a process of its own."""
    recipes = _recipes(options.recipes, devices, sizes)
    if not recipes:
        return
    with tempfile.TemporaryDirectory() as caches:
        environment = {**environment_of(options.threads, caches), "CPU_NUM_DEVICES": str(devices)}
        limit, patience = options.memory_limit, options.time_limit
        with Worker(
            environment=environment, memory_gb=limit, module="bench.sharding_block"
        ) as worker:
            given = {"sizes": dataclasses.asdict(sizes), "threads": options.threads}
            worker.ask("prepare", patience, devices=devices, **given)
            # What is first in a process is slower: XLA and torch prepare themselves.
            worker.ask("measure", patience, recipe=recipes[0], rounds=1, runs=False)
            for recipe in recipes:
                tell(f"{devices} devices, {recipe}")
                asked = {"recipe": recipe, "rounds": options.rounds if runs else 1, "runs": runs}
                figures = worker.ask("measure", patience, **asked)
                known = {"devices": devices, "recipe": recipe, "ran": runs, "load": _load()[0]}
                yield {**known, **figures}


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
    columns = ("recipe", "devices", "mesh", "collectives", "sent", "as compiled", "textbook")
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
        due, least = (
            sum(predict(r["recipe"], r["devices"], sizes).values())
            for predict in (as_compiled, textbook)
        )
        kinds = ", ".join(f"{n} {kind}" for kind, n in r["collectives"].items())
        error = "not run" if r["error"] is None else f"{r['error']:.0e}"
        megabytes = (f"{n / 1e6:.3f}" for n in (sent, due, least))
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
