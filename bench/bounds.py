"""What bounds a model: the share of its time in products and in calls of libraries, by a profile.

`python -m bench.bounds --results FILE.jsonl` profiles the models of a file of results, each in a
process of its own, compiled by openxla: products, convolutions and calls of libraries against
everything else. The bound is how many times as fast as the fastest other backend openxla would be,
were all else free.
"""

import argparse
import itertools
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
from bench.models import MODELS, build
from bench.results import Results, geometric_mean, latency, speedup
from bench.timing import add_settings, in_fresh_process, set_threads

CALLS = 5
# The name and the opcode of an instruction of HLO; a custom fusion is a product by YNNPACK.
_HEAVY = re.compile(
    r"^\s*(?:ROOT )?%?([\w.\-]+) = (?:\([^)]*\)|\S+) "
    r"(?:(?:dot|convolution|custom-call)\(|fusion\(.*kind=kCustom)",
    re.MULTILINE,
)


def share(name: str, size: str) -> float:
    """Of a call's time, the part in which some product or call of a library runs."""
    model, entry = build(name, size), MODELS[name]
    inputs = entry.inputs(size, entry.batch)
    compiled = torch.compile(model, backend="openxla", dynamic=False)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        built = xla_dynamo.explain(model)(**inputs).executables
        heavy = {found for each in built for found in _HEAVY.findall(each.hlo or "")}
        for _ in range(2):
            compiled(**inputs)
        with jax.profiler.trace(folder, profiler_options=options):
            start = time.perf_counter()
            for _ in range(CALLS):
                compiled(**inputs)
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
    parser.add_argument("--share", choices=sorted(MODELS), help="print one model's share alone")
    add_settings(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    if options.share:
        print(share(options.share, options.size))
        return
    if options.results is None:
        parser.error("--results FILE.jsonl is needed: what `python -m bench run --output` wrote")
    records = [r for r in Results(options.results).models.values() if latency(r, "openxla")]
    console = Console(width=None if sys.stdout.isatty() else 100)
    table = Table(title="products and calls of libraries")
    for column in ("model", "openxla ms", "their share", "speedup", "bound"):
        table.add_column(column, justify="left" if column == "model" else "right")
    rows = []
    for record in track(records, console=console, disable=not sys.stdout.isatty()):
        (part,) = in_fresh_process(
            "bench.bounds", "--share", record["model"], "--size", options.size
        )
        gained = speedup(record, "openxla", set(record["backends"]) - {"openxla"})
        rows.append((gained, gained and gained / part))
        figures = (f"{n:.2f}" if n else "-" for n in rows[-1])
        table.add_row(record["model"], f"{latency(record, 'openxla'):.1f}", f"{part:.0%}", *figures)
    means = (f"{geometric_mean(column):.2f}" for column in zip(*rows, strict=True))
    table.add_section()
    table.add_row("geometric mean", "", "", *means)
    console.print(table)


if __name__ == "__main__":
    main()
