"""Put single faults into the package, and see which of them the suite finds.

python -m tests.faults draw --count 40 --seed 0
python -m tests.faults reach
python -m tests.faults run --count 40 --seed 0
python -m tests.faults run --count 40 --seed 0 --resume
python -m tests.faults run --only 7 -- -W ignore
"""

import argparse
import collections
import pathlib
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from docs import import_floors
from tests.faults import reach
from tests.faults.draw import draw
from tests.faults.run import FOUND, HANG, Outcome, Outcomes, Settings, examine_all
from tests.faults.sites import Fault

ROOT = import_floors.ROOT
FOLDER = ROOT / ".faults"


def main(arguments: Sequence[str] | None = None, root: pathlib.Path = ROOT) -> int:
    """Draw faults, record what the tests reach, or run the tests on each fault."""
    given, for_pytest = _parse(sys.argv[1:] if arguments is None else list(arguments))
    console = Console()
    if given.command == "reach":
        # Coverage.py keeps its file open while warnings are errors.
        marks = ["-n", "2", "-m", given.marks, "-W", "ignore:unclosed database:ResourceWarning"]
        status, percent = reach.record(root, given.out, [*marks, *for_pytest])
        console.print(f"{percent:.1f} % of the lines are run; {given.out} says by which test")
        return status
    faults = dict(enumerate(draw(root, given.count, given.seed), 1))
    if given.command == "draw":
        for number, fault in faults.items():
            console.print(f"{number}. {escape(str(fault))}", highlight=False, soft_wrap=True)
        return 0
    if given.only:
        faults = {given.only: faults[given.only]}
    return _run(root, faults, given, for_pytest, console)


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """The arguments, and those for pytest, which stand after `--`."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="list the faults")
    reaching = commands.add_parser("reach", help="run the suite: which test reaches which line?")
    running = commands.add_parser("run", help="run the tests that reach each fault")
    for command in (drawing, running):
        command.add_argument("--count", type=int, default=40, help="how many faults")
        command.add_argument("--seed", type=int, default=0, help="what they are drawn by")
    reaching.add_argument("--marks", default="not slow", help="pytest's -m")
    place = FOLDER / "reach.sqlite"
    reaching.add_argument("--out", type=pathlib.Path, default=place, help="the file to write")
    running.add_argument("--reach", type=pathlib.Path, default=place, help="what `reach` wrote")
    place = FOLDER / "outcome.json"
    running.add_argument("--out", type=pathlib.Path, default=place, help="the file to write")
    running.add_argument("--jobs", type=int, default=2, help="how many faults at once")
    running.add_argument("--limit", type=float, default=240, help="seconds for each fault")
    running.add_argument("--tests", type=int, default=300, help="how many for each fault at most")
    running.add_argument("--only", type=int, metavar="K", help="the fault of this number alone")
    running.add_argument("--resume", action="store_true", help="keep the outcomes that are known")
    given = parser.parse_args(arguments[:cut])
    if getattr(given, "only", None) and not 1 <= given.only <= given.count:
        running.error(f"--only must be a number from 1 to {given.count}")
    if given.command == "run" and not given.reach.exists():
        running.error(f"{given.reach} is not there: `python -m tests.faults reach` makes it")
    return given, arguments[cut + 1 :]


def _run(
    root: pathlib.Path,
    faults: dict[int, Fault],
    given: argparse.Namespace,
    for_pytest: Sequence[str],
    console: Console,
) -> int:
    """Examine the faults, tell of each as it is done, and write the file of outcomes."""
    about = {"seed": given.seed, "count": given.count}
    outcomes = Outcomes(given.out, about, resume=given.resume or bool(given.only))
    known = {} if given.only else outcomes.known
    numbers = {fault: number for number, fault in faults.items()}
    missing = [fault for fault in numbers if fault not in known]
    settings = Settings(given.limit, given.tests, tuple(for_pytest))
    try:
        for fault, outcome in examine_all(root, missing, given.reach, settings, given.jobs):
            outcomes.add(fault, outcome)
            told = f"{numbers[fault]}. {fault}: {outcome.result}, {outcome.seconds:.0f} s"
            console.print(escape(told), highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        console.print(f"{given.out} has the outcomes until here; --resume goes on")
        return 130
    console.print(_table({n: (f, outcomes.known[f]) for f, n in numbers.items()}))
    return 0


def _table(rows: dict[int, tuple[Fault, Outcome]]) -> Table:
    counts = collections.Counter(outcome.result for _, outcome in rows.values())
    title = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    table = Table(title=title)
    for name in ("", "place", "kind", "fault", "outcome", "s", "tests", "found by"):
        table.add_column(name, overflow="fold")
    for number, (fault, outcome) in sorted(rows.items()):
        by = outcome.test or "an import"
        tests = f"{outcome.ran} of {outcome.chosen}, {outcome.reaching} reach it"
        place = f"{fault.path}:{fault.line}"
        found = escape(by) if outcome.result in (FOUND, HANG) else ""
        seconds, change = f"{outcome.seconds:.0f}", escape(fault.change())
        table.add_row(str(number), place, fault.kind, change, outcome.result, seconds, tests, found)
    return table


if __name__ == "__main__":
    sys.exit(main())
