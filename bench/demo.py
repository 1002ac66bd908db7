"""Six real models with random weights: checked against eager, timed against eager and Inductor.

`python -m bench.demo` (or `make demo`) prints a table; it exits with 1 if a model disagrees with
eager by more than 1e-4 of its output's scale. `--models bert,vit` chooses, `--size tiny` is quick,
and `--output FILE` writes the figures as a file of results, which `python -m bench report` reads.
"""

import argparse
import dataclasses
import os
import pathlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.accuracy import relative_error
from bench.models import MODELS, build
from bench.results import Record, Results, describe_run
from bench.timing import add_settings, interleave, positive, set_threads

CHOSEN = ("resnet50", "mobilenet_v2", "vit", "bert", "gpt2", "llama")
TOLERANCE = 1e-4


@dataclasses.dataclass
class Row:
    """What was measured for one model: seconds, seconds, and a relative error."""

    latency: dict[str, float]
    compile: dict[str, float]
    error: float


def measure(name: str, size: str, batch: int, say: Callable[[str], None]) -> Row:
    """Compile a model with both backends, check ours, and time all three in turn."""
    torch._dynamo.reset()
    say("building")
    model = build(name, size)
    torch.manual_seed(1)
    inputs = MODELS[name].inputs(size, batch)
    calls: dict[str, Callable[[], Any]] = {"eager": lambda: model(**inputs)}
    compile_seconds: dict[str, float] = {}
    error = float("nan")
    with torch.no_grad():
        expected = model(**inputs)
        for backend in ("inductor", "openxla"):
            say(f"compiling with {backend}")
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            start = time.perf_counter()
            result = compiled(**inputs)
            compile_seconds[backend] = time.perf_counter() - start
            calls[backend] = lambda f=compiled: f(**inputs)
            if backend == "openxla":
                error = relative_error(expected, result)
        say("timing")
        latency = interleave(calls, rounds=7, seconds=0.3)
    return Row(latency, compile_seconds, error)


def table(rows: dict[str, Row], batch: int) -> Table:
    """The result, one line a model."""
    shown = Table(
        title=f"inference, float32, batch {batch}, {torch.get_num_threads()} torch threads",
        caption="latency: median of interleaved rounds; compile: the first call, cold caches; "
        "error: largest difference from eager on the output's scale",
    )
    shown.add_column("model")
    for column in (
        "eager ms", "inductor ms", "openxla ms", "openxla / inductor", "inductor compile s",
        "openxla compile s", "error",
    ):  # fmt: skip
        shown.add_column(column, justify="right")
    for name, row in rows.items():
        shown.add_row(
            name,
            *(f"{row.latency[b] * 1e3:.1f}" for b in ("eager", "inductor", "openxla")),
            f"{row.latency['openxla'] / row.latency['inductor']:.2f}",
            *(f"{row.compile[b]:.1f}" for b in ("inductor", "openxla")),
            f"{row.error:.0e}" if row.error <= TOLERANCE else f"[red]{row.error:.0e}[/red]",
        )
    return shown


def write(rows: dict[str, Row], options: argparse.Namespace) -> None:
    """Write the figures as a file of results, in place of one that is there."""
    settings = {k: getattr(options, k) for k in ("size", "batch", "threads")}
    options.output.unlink(missing_ok=True)
    results = Results(options.output)
    results.append(describe_run("python -m bench.demo", {"dtype": "float32", **settings}))
    for name, row in rows.items():
        backends: Record = {b: {"status": "ok", "ms": [t * 1e3]} for b, t in row.latency.items()}
        for backend, seconds in row.compile.items():
            backends[backend]["cold_s"] = seconds
        backends["openxla"]["error"] = row.error
        results.append({"model": name, "backends": backends})


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(CHOSEN))
    add_settings(parser)
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if unknown := MODELS.unknown(options.models.split(",")):
        parser.error(f"unknown models {unknown}; known: {', '.join(MODELS)}, timm/NAME")
    return options


def main() -> None:
    """Run the chosen models and print the table."""
    options = parsed()
    names = options.models.split(",")
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    rows: dict[str, Row] = {}
    console = Console(width=None if sys.stdout.isatty() else 132)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory() as cold,  # Inductor's disk cache would hide its compile time
        Progress(*columns, console=console) as progress,
    ):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cold
        for name in names:
            task = progress.add_task(name, total=1)
            rows[name] = measure(
                name,
                options.size,
                options.batch,
                lambda step, task=task, name=name: progress.update(
                    task, description=f"{name}: {step}"
                ),
            )
            progress.update(task, description=f"{name}: done", completed=1)
    console.print(table(rows, options.batch))
    if options.output is not None:
        write(rows, options)
    wrong = [name for name, row in rows.items() if not row.error <= TOLERANCE]
    if wrong:
        console.print(f"[red]{', '.join(wrong)}: further than {TOLERANCE} from eager[/red]")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
