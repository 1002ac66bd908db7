"""Run torch's own tests of processes over `init_process_group("xla")`, and print what passes.

`python -m bench.torch_distributed` runs those in torch's wheel, of all backends. With `--folder`,
the folder test/distributed of a checkout of PyTorch, it runs the files of FILES there, or those
that are named. Nothing is changed in the tests but the names of device and backend in their text;
with `--device cpu` not even these, and tensors are the CPU's. A test that fails in processes in
which others ran before has the outcome that it has in new ones.
"""

import argparse
import collections
import json
import pathlib
import re
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

from bench.timing import positive
from bench.torch_distributed.crew import Crew, Outcome
from bench.torch_distributed.worker import WHEEL

# Files of a checkout that have tests for several processes with no need of CUDA's own parts.
FILES = (
    "test_c10d_common.py",
    "test_c10d_object_collectives.py",
    "_composable/test_replicate.py",
    "optim/test_zero_redundancy_optimizer.py",
    "algorithms/ddp_comm_hooks/test_ddp_hooks.py",
    "_tensor/test_*.py",
    "tensor/test_*.py",
    "tensor/parallel/test_*.py",
    "test_device_mesh.py",
    "test_functional_api.py",
)


def places(folder: pathlib.Path | None, names: list[str]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """The modules to run, with the folders from which they are imported."""
    if folder is None:
        yield WHEEL, ()
        return
    for name in names or FILES:
        for file in sorted(folder.glob(name)):
            yield file.stem, (str(file.parent.resolve()), str(folder.resolve()))


def cause(why: str) -> str:
    """One line that says why a test has failed or was skipped: the last error of its trace."""
    named = re.findall(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit)\b.*", why, re.MULTILINE)
    return (named or why.strip().splitlines() or [""])[-1][:160]


def run(module: str, folders: tuple[str, ...], given: argparse.Namespace) -> list[Outcome]:
    """The outcomes of a module's tests for several processes."""
    console = Console()
    try:
        crew = Crew(given.processes, module, folders, given.device)
    except RuntimeError as error:
        console.print(f"{module} is not loaded: {cause(str(error))}", markup=False)
        return []
    found = []
    try:
        for kind, test, size in crew.tests:
            if re.search(given.match, f"{kind}.{test}"):
                found.append(outcome := crew.run(kind, test, size, given.seconds))
                line = f"{outcome.how:8}{outcome.seconds:7.1f} s {outcome.name}"
                console.print(line, cause(outcome.why), markup=False, soft_wrap=True)
                if given.outcomes:
                    with open(given.outcomes, "a") as file:
                        file.write(json.dumps({"file": module, **vars(outcome)}) + "\n")
    finally:
        crew.stop()
    return found


def table(found: dict[str, list[Outcome]]) -> Table:
    """How many tests of each file have run, have passed, were skipped, and have failed."""
    shown = Table("file", "run", "passed", "failed", "skipped")
    for file, outcomes in found.items():
        count = collections.Counter(o.how for o in outcomes)
        numbers = [count["passed"] + count["failed"], *map(count.get, ("passed", "failed"))]
        shown.add_row(file, *(str(n or 0) for n in (*numbers, count["skipped"])))
    return shown


def causes(found: dict[str, list[Outcome]], how: str) -> Table:
    """Why tests have failed, or were skipped, and how many for each reason."""
    every = [o for outcomes in found.values() for o in outcomes if o.how == how]
    count = collections.Counter(cause(o.why) for o in every)
    shown = Table("tests", f"{how} because of", "one of them")
    for reason, number in count.most_common():
        one = next(o.name for o in every if cause(o.why) == reason)
        shown.add_row(str(number), reason, one)
    return shown


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="files in the folder; patterns may be given")
    parser.add_argument("--folder", type=pathlib.Path, help="test/distributed of a checkout")
    parser.add_argument("--processes", type=positive, default=2)
    parser.add_argument("--device", choices=("xla", "cpu"), default="xla")
    parser.add_argument("--match", default="", help="a regular expression of class.test")
    parser.add_argument("--seconds", type=positive, default=90, help="for one test")
    parser.add_argument("--outcomes", help="file to add a line of JSON to for each test")
    given = parser.parse_args()
    found = {m: run(m, folders, given) for m, folders in places(given.folder, given.files)}
    console = Console()
    for shown in (table(found), causes(found, "failed"), causes(found, "skipped")):
        console.print(shown)


if __name__ == "__main__":
    main()
