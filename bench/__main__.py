"""Models against backends, as a table and a page.

python -m bench run --suite quick
python -m bench run --suite standard --backends eager,inductor,openxla --output results.jsonl
python -m bench run --suite training --mode training --backends eager,inductor,openxla-step
python -m bench run --suite bfloat16 --dtype bfloat16
python -m bench run --models $(python -m bench draw --seed 7)
python -m bench again 2026-11-27-bfloat16-inference-xeon-amx
python -m bench report results.jsonl
python -m bench compare before.jsonl after.jsonl
python -m bench peers
python -m bench serve
python -m bench start
python -m bench sharding
"""

import argparse
import dataclasses
import datetime
import pathlib
import shlex
import signal
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from bench import peers, report, serve, sharding, start
from bench.backends import BACKENDS
from bench.compare import compare
from bench.models import MODELS
from bench.models.suites import SUITES
from bench.models.timm_models import draw
from bench.processes import ROOT
from bench.results import Results, describe_run, failures, note_overhead, where
from bench.run import TOLERANCES, Limits, measure
from bench.timing import above_zero, add_limits, add_settings, positive, zero_or_more
from bench.worker import Task


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status: 1 if a result was wrong or a model failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="measure"))
    drawn = commands.add_parser("draw", help="names of models of timm, drawn by lot")
    drawn.add_argument("count", type=positive, nargs="?", default=10)
    drawn.add_argument("--seed", type=int, default=0)
    drawn.add_argument("--parameters", type=above_zero, default=30, help="below so many millions")
    again = commands.add_parser("again", help="what a file in bench/results was measured by")
    again.add_argument("name", help="the file's name, without .jsonl")
    shown = commands.add_parser("report", help="table, chart and page of a file of results")
    shown.add_argument("results", type=pathlib.Path)
    two = commands.add_parser("compare", help="two files of results side by side")
    two.add_argument("before", type=pathlib.Path)
    two.add_argument("after", type=pathlib.Path)
    made = commands.add_parser("peers", help="make the environments that other backends need")
    made.add_argument("names", nargs="*", help=", ".join(peers.ENVIRONMENTS))
    serve.add_options(
        commands.add_parser("serve", help="requests of clients to one BERT, one GPT-2")
    )
    start.add_options(
        commands.add_parser(
            "start", help="from a process's start to its first result, cold and warm"
        )
    )
    sharded = commands.add_parser("sharding", help="a Llama block sharded over virtual devices")
    sharding.add_options(sharded)
    options = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 180)
    match options.command:
        case "run":
            return run(options, parser, console)
        case "draw":
            try:
                print(",".join(draw(options.count, options.seed, options.parameters * 1e6)))
            except ModuleNotFoundError as error:
                parser.error(str(error))
        case "again":
            kept = _read(ROOT / "bench" / "results" / f"{options.name}.jsonl", parser)
            words = shlex.split(kept.run["run"])
            if words[:4] != ["python", "-m", "bench", "run"]:
                parser.error(f"that was measured by: {kept.run['run']}")
            day = datetime.date.today().isoformat()
            return main([*words[3:], "--output", f"{day}-again-{options.name}.jsonl"])
        case "report":
            results = _read(options.results, parser)
            report.show(results, console)
            for path in report.write(results, options.results.parent):
                console.print(f"wrote {path}")
        case "compare":
            before, after = _read(options.before, parser), _read(options.after, parser)
            if not before.models.keys() & after.models.keys():
                parser.error(f"{before.path} and {after.path} have no model in common")
            compare(before, after, console)
        case "peers":
            if unknown := set(options.names) - set(peers.ENVIRONMENTS):
                parser.error(f"unknown {sorted(unknown)}; known: {', '.join(peers.ENVIRONMENTS)}")
            for name in options.names or peers.ENVIRONMENTS:
                console.print(f"{name}: {peers.make(name)}")
        case "serve":
            return serve.run(options, console)
        case "start":
            return start.run(options, console)
        case "sharding":
            return sharding.run(options, console)
    return 0


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", choices=("full", *SUITES), default="quick")
    parser.add_argument("--models", help="names, by commas, in place of a suite")
    parser.add_argument("--backends", default="eager,inductor,openxla", help=", ".join(BACKENDS))
    parser.add_argument("--mode", choices=("inference", "training"), default="inference")
    add_settings(parser)
    parser.add_argument("--batch", type=positive, help="default: each model's own")
    parser.add_argument("--dtype", choices=tuple(TOLERANCES), default="float32")
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--seconds", type=above_zero, default=0.3, help="length of a round")
    parser.add_argument(
        "--pause", type=zero_or_more, default=0.3, help="seconds before a round, all being stopped"
    )
    parser.add_argument(
        "--overhead",
        action="store_true",
        help="also time each model's tiny size: what a call costs",
    )
    add_limits(parser)
    parser.add_argument(
        "--output", type=pathlib.Path, help="default: bench/results/DATE-SUITE.jsonl"
    )
    parser.add_argument("--retry", action="store_true", help="again what failed in that file")


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, console: Console) -> int:
    """Measure what is not in the file yet, and report."""
    backends = options.backends.split(",")
    if unknown := set(backends) - set(BACKENDS):
        parser.error(f"unknown backends {sorted(unknown)}; known: {', '.join(BACKENDS)}")
    for name in backends:
        if not peers.available(needed := BACKENDS[name].environment):
            parser.error(f"{name} has no environment: run `python -m bench peers {needed}`")
        if absent := peers.missing(BACKENDS[name].packages):
            parser.error(f"{name} needs {', '.join(absent)}: pip install '.[peers]'")
    names = _suite(options.suite) if options.models is None else options.models.split(",")
    if unknown := MODELS.unknown(names):
        parser.error(f"unknown models {unknown}; known: {', '.join(MODELS)}, timm/NAME")
    day = datetime.date.today().isoformat()
    named = f"{day}-{options.suite}-{options.mode}-{options.dtype}.jsonl"
    path = options.output or ROOT / "bench" / "results" / named
    results = _read(path, parser, must_exist=False)
    kept = ("mode", "size", "batch", "dtype", "threads", "rounds", "seconds", "pause")
    settings = {**{k: getattr(options, k) for k in kept}, "backends": backends}
    if results.run and {"batch": None, "pause": 0.0, **results.run["settings"]} != settings:
        parser.error(f"{path} has results of other settings: {results.run['settings']}")
    now = describe_run(_command(options), settings)
    missing = [n for n in names if _is_missing(results, n, options.retry)]
    if missing and where(now) not in map(where, results.runs):
        if results.runs:
            console.print(f"so far {report.caption(results)}; the rest on {where(now)}")
        try:
            results.append(now)
        except OSError as error:
            parser.error(str(error))
    limits = Limits(options.time_limit, options.memory_limit)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(missing))
        for name in missing:

            def say(step: str, name: str = name) -> None:
                progress.update(bar, description=f"{name}: {step}")

            batch = options.batch or (MODELS[name].batch if options.size == "full" else 2)
            task = Task(name, options.mode, options.size, batch, options.dtype, options.threads)
            timing = (options.rounds, options.seconds, options.pause)
            record = measure(task, backends, limits, say, *timing)
            if options.overhead:
                tiny = dataclasses.replace(task, size="tiny", batch=2)
                note_overhead(record, measure(tiny, backends, limits, say, 5, 0.1, options.pause))
            results.append(record)
            console.print("  ".join(report.row(results, record)), highlight=False)
            progress.advance(bar)
    report.show(results, console)
    for written in report.write(results, path.parent):
        console.print(f"wrote {written}")
    return int(bool(failures(results)))


def _command(options: argparse.Namespace) -> str:
    """What anyone can type to measure the same."""
    chosen = ["--suite", options.suite]
    if options.models is not None:
        chosen = ["--models", options.models]
    same = ("backends", "mode", "size", "batch", "dtype", "threads", "rounds", "seconds", "pause")
    given = [(name, getattr(options, name)) for name in same]
    more = [
        word for name, value in given if value is not None for word in (f"--{name}", str(value))
    ]
    more += ["--overhead"] if options.overhead else []
    return " ".join(["python -m bench run", *chosen, *more])


def _suite(name: str) -> list[str]:
    return [model for model, entry in MODELS.items() if name in entry.suites]


def _is_missing(results: Results, name: str, retry: bool) -> bool:
    record = results.models.get(name)
    if record is None:
        return True
    return retry and any(b.get("status") != "ok" for b in record["backends"].values())


def _read(path: pathlib.Path, parser: argparse.ArgumentParser, must_exist: bool = True) -> Results:
    if must_exist and not path.exists():
        parser.error(f"there is no file {path}")
    try:
        results = Results(path)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if must_exist and not results.backends():
        parser.error(f"there are no results in {path}")
    return results


if __name__ == "__main__":
    # As an exception, so that folders and processes are cleared away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
