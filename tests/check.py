"""Two minutes of checks while one writes: `make check`, or `python -m tests.check [--base COMMIT]`.

Lint, the ten things of test_tiny, and the tests nearest to what has changed since a commit: those
that changed themselves, that bear the name of a changed file, or that import it; then those that
import what imports it, and so on, as far as the time allows by tests/durations.json.
"""

import argparse
import collections
import functools
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping

from docs import import_floors

ROOT = import_floors.ROOT
DURATIONS = pathlib.Path(__file__).with_name("durations.json")
ALWAYS = ("tests/test_tiny.py", "tests/test_structure.py")
LAZY = "tests/test_lazy_device.py"  # runs the folder tests/lazy, whose tests need their own process
# Seconds that a file takes of which nobody knows, and those that no test spends: lint, imports.
UNKNOWN, BESIDE = 5.0, 45
PROCESSES = 2


def changed(base: str) -> set[str]:
    """The paths that differ from a commit, those that git does not know yet among them."""
    found: set[str] = set()
    for command in (f"diff --name-only {base}", "ls-files --others --exclude-standard"):
        git = ["git", *command.split()]
        run = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True)
        found.update(run.stdout.split())
    return found


def distances(
    paths: Iterable[str], imports: Mapping[str, set[str]], files: Mapping[str, str]
) -> dict[str, int]:
    """How many imports lie between each file and the nearest of some paths.

    Args:
        paths: those that changed, 0 imports away.
        imports: by each module, those that it imports.
        files: by each module, its path.
    """
    readers = collections.defaultdict(set)
    for module, others in imports.items():
        for other in others:
            readers[other].add(module)
    near = {module: 0 for module, path in files.items() if path in set(paths)}
    queue = collections.deque(near)
    while queue:
        module = queue.popleft()
        for reader in readers[module] - near.keys():
            near[reader] = near[module] + 1
            queue.append(reader)
    return {files[module]: distance for module, distance in near.items()}


@functools.cache
def graph() -> tuple[dict[str, set[str]], dict[str, str]]:
    """By each module of the package, the tests, the benchmark and the docs: imports and path."""
    paths = {**import_floors.sources()}
    for folder in ("tests", "bench", "docs"):
        for path in (ROOT / folder).rglob("*.py"):
            paths[".".join(path.relative_to(ROOT).with_suffix("").parts)] = path
    imports = {}
    for name, path in paths.items():
        taken = import_floors.imported(path)
        imports[name] = {n for t in taken for n in (t, t.rpartition(".")[0]) if n in paths} - {name}
    return imports, {name: str(path.relative_to(ROOT)) for name, path in paths.items()}


def nearest(paths: set[str]) -> list[str]:
    """Files of tests from the nearest to the changed paths to the farthest."""
    near = distances(paths, *graph())
    stems = {pathlib.Path(p).stem for p in paths if p.endswith(".py")}
    rows = []
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        name, stem = str(path.relative_to(ROOT)), path.stem.removeprefix("test_")
        if name in paths or stem in stems or name in near:
            rank = 0 if name in paths else 1 if stem in stems else 1 + near[name]
            rows.append((rank, name))
    ordered = (name for _, name in sorted(rows))
    return list(dict.fromkeys(LAZY if n.startswith("tests/lazy/") else n for n in ordered))


def affordable(files: Iterable[str], seconds: float) -> tuple[list[str], list[str]]:
    """The files that fit into a time, taken in their order, and those that do not."""
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    taken: list[str] = []
    left = []
    budget = seconds * PROCESSES
    for name in dict.fromkeys((*ALWAYS, *files)):
        cost = known.get(name, UNKNOWN)
        if cost <= min(budget, seconds):  # one file may be one process's, from end to end
            budget -= cost
            taken.append(name)
        else:
            left.append(name)
    return taken, left


def main() -> int:
    """Run the checks, and tell what there was no time for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", default="HEAD", help="the commit to compare with (HEAD)")
    parser.add_argument("--seconds", type=float, default=120)
    options = parser.parse_args()
    start = time.monotonic()
    paths = changed(options.base)
    taken, left = affordable(nearest(paths), options.seconds - BESIDE)
    print(f"{len(paths)} changed files since {options.base}, {len(taken)} files of tests near them")
    commands = {
        "ruff check": ["ruff", "check", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "mypy": ["mypy"],
        "pytest": ["pytest", "-q", "-n", str(PROCESSES), "-m", "not slow", *taken],
    }
    failed = []
    for name, command in commands.items():
        sys.stdout.flush()
        if subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode:
            failed.append(name)
    if left:
        print(f"No time for {len(left)} files, the nearest first: {' '.join(left[:12])} ...")
    verdict = f"{', '.join(failed)} failed" if failed else "all right"
    print(f"{verdict}, after {time.monotonic() - start:.0f} s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
