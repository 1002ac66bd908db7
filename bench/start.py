"""From the start of a process to a model's first result, cold and warm, stage by stage.

`python -m bench start` starts processes one after another. The first of a backend finds empty
caches, and later ones what it left: openxla's disk cache, Inductor's caches of graphs and code.
"exported" runs a folder that the first one wrote with `xla_dynamo.stablehlo`, without the model's
code. Seconds are wall time; of the warm processes, which the backends take in turns, the median.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table

from bench.processes import ROOT, environment_of
from bench.started import STAGES
from bench.timing import add_settings, positive

STARTED = ("resnet50", "vit", "bert", "gpt2", "llama", "ddpm_unet")
BACKENDS = ("inductor", "openxla", "exported")
Stages = dict[str, float]


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--models", nargs="+", default=list(STARTED))
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    add_settings(parser)
    parser.add_argument("--warm", type=positive, default=3, help="how many processes are warm")


def run(options: argparse.Namespace, console: Console) -> int:
    """Measure, and print; the exit status: 1 if a process failed."""
    ratios: dict[str, list[float]] = {}
    failed = False
    for model in options.models:
        try:
            table, found = _start(model, options, console)
        except subprocess.CalledProcessError as error:
            failed = True
            console.print(f"{model}: failed: {_last_words(error.stderr)}", markup=False)
            continue
        console.print(table)
        for name, ratio in found.items():
            ratios.setdefault(name, []).append(ratio)
    for name, each in ratios.items():
        mean = statistics.geometric_mean(each)
        console.print(f"{name} / inductor warm, geometric mean of {len(each)}: {mean:.2f}")
    return int(failed)


def _start(
    model: str, options: argparse.Namespace, console: Console
) -> tuple[Table, dict[str, float]]:
    """The table of a model, and the total of each row as a ratio to Inductor's when warm.

    Raises:
        CalledProcessError: a process failed.
    """
    rows: dict[str, Stages] = {}
    with tempfile.TemporaryDirectory() as folder, console.status("") as status:
        warm: dict[str, list[Stages]] = {backend: [] for backend in options.backends}
        for backend in options.backends:
            status.update(f"{model}, {backend}: cold")
            rows[f"{backend} cold"] = _process(model, backend, options, folder)
        for turn in range(options.warm):
            for backend, found in warm.items():
                status.update(f"{model}, {backend}: warm, {turn + 1} of {options.warm}")
                found.append(_process(model, backend, options, folder))
        for backend, found in warm.items():
            medians = {s: statistics.median(each[s] for each in found) for s in STAGES}
            total = statistics.median(sum(each.values()) for each in found)
            rows[f"{backend} warm"] = {**medians, "total": total}
    table = Table("", title=f"{model} ({options.size}): seconds to the first result")
    for column in (*STAGES, "total", "/ inductor warm"):
        table.add_column(column, justify="right")
    base = rows.get("inductor warm", {}).get("total")
    ratios = {}
    for name, row in rows.items():
        total = row.setdefault("total", sum(row.values()))
        if base is not None:
            ratios[name] = total / base
        ratio = f"{ratios[name]:.2f}" if base is not None else "-"
        table.add_row(name, *(f"{row[s]:.2f}" for s in STAGES), f"{total:.2f}", ratio)
    return table, ratios


def _process(model: str, backend: str, options: argparse.Namespace, folder: str) -> Stages:
    """The stages of one process, whose caches are in a folder."""
    threads = str(options.threads)
    exported = os.path.join(folder, "exported")
    found = subprocess.run(
        [sys.executable, "-m", "bench.started", model, backend, options.size, threads, exported],
        env={
            **os.environ,
            **environment_of(options.threads, os.path.join(folder, "inductor")),
            "XLA_DYNAMO_CACHE_DIR": os.path.join(folder, backend),
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout.splitlines()[-1])


def _last_words(text: str) -> str:
    """The last line that a process said."""
    return (text.strip().splitlines() or ["it said nothing"])[-1]
