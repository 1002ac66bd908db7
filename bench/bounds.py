"""What bounds a model: the share of its time in products and in calls of libraries, by a profile.

`python -m bench.bounds --results FILE.jsonl` profiles the models of a file of results, each in a
process of its own, compiled by openxla: products, convolutions and calls of libraries against
everything else. The bound is how many times as fast as the better of eager and Inductor openxla
would be, were all else free.
"""

import argparse
import dataclasses
import itertools
import json
import pathlib
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable

import jax
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

import xla_dynamo
from bench.report import peers
from bench.results import Results, geometric_mean, latency, speedup
from bench.timing import in_fresh_process
from bench.worker import Subject, Task

CALLS = 5
# The name and the opcode of an instruction of HLO; a custom fusion is a product by YNNPACK.
_HEAVY = re.compile(
    r"^\s*(?:ROOT )?%?([\w.\-]+) = (?:\([^)]*\)|\S+) "
    r"(?:(?:dot|convolution|custom-call)\(|fusion\(.*kind=kCustom)",
    re.MULTILINE,
)


def share(task: Task) -> float:
    """Of a call's time, the part in which some product or call of a library runs."""
    subject = Subject(task, "openxla")
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with tempfile.TemporaryDirectory() as folder:
        with torch.no_grad(), subject.autocast():
            built = xla_dynamo.explain(subject.model)(**subject.inputs).executables
        heavy = {found for each in built for found in _HEAVY.findall(each.hlo or "")}
        for _ in range(2):
            subject.step()
        with jax.profiler.trace(folder, profiler_options=options):
            start = time.perf_counter()
            for _ in range(CALLS):
                subject.step()
            seconds = time.perf_counter() - start
        return covered(events(pathlib.Path(folder), heavy)) / 1e9 / seconds


def events(folder: pathlib.Path, names: set[str]) -> list[tuple[float, float]]:
    """When the instructions of these names began and ended, in ns, from a profile."""
    (path,) = folder.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(path)).planes
    lines = itertools.chain.from_iterable(plane.lines for plane in planes)
    return [
        (event.start_ns, event.start_ns + event.duration_ns)
        for event in itertools.chain.from_iterable(line.events for line in lines)
        if event.name.split("__onednn$")[0] in names
    ]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the union of some spans: what runs at the same time counts once."""
    length, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        length += max(last - max(first, end), 0)
        end = max(end, last)
    return length


def main() -> None:
    """Profile and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--share", metavar="TASK", help="print one task's share alone (JSON)")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.share:
        print(share(Task(**json.loads(options.share))))
        return
    if options.results is None or not options.results.exists():
        parser.error("--results FILE.jsonl is needed: what `python -m bench run --output` wrote")
    results = Results(options.results)
    others = peers(results)
    records = [r for r in results.models.values() if latency(r, "openxla")]
    if any(record["mode"] != "inference" for record in records):
        parser.error(f"{options.results} has other results than of inference")
    console = Console(width=None if sys.stdout.isatty() else 100)
    table = Table(title="products and calls of libraries")
    for column in ("model", "openxla ms", "their share", "speedup", "bound"):
        table.add_column(column, justify="left" if column == "model" else "right")
    rows = []
    for record in track(records, console=console, disable=not sys.stdout.isatty()):
        names = {field.name for field in dataclasses.fields(Task)} & set(record)
        task = {name: record[name] for name in names}
        (part,) = in_fresh_process("bench.bounds", "--share", json.dumps(task))
        gained = speedup(record, "openxla", others)
        rows.append((gained, gained and gained / part))
        figures = (f"{n:.2f}" if n else "-" for n in rows[-1])
        table.add_row(record["model"], f"{latency(record, 'openxla'):.1f}", f"{part:.0%}", *figures)
    means = (f"{geometric_mean(column):.2f}" for column in zip(*rows, strict=True))
    table.add_section()
    table.add_row("geometric mean", "", "", *means)
    console.print(table)


if __name__ == "__main__":
    main()
