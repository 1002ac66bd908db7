"""`run.py` of a dump: compile its program, run it, and compare with eager torch."""

import pathlib
import sys
from typing import Any

import torch

from xla_dynamo.errors import StorageError
from xla_dynamo.reproduction.comparing import Difference, compare, noise_of
from xla_dynamo.reproduction.saved_program import SavedProgram, read_program


def main(graph: type[torch.nn.Module], path: str) -> None:
    """Run the program of a dump, and end the process: status 0 if it is right, else 1.

    Args:
        graph: the graph as a module of operators.
        path: that of `run.py`, in the folder of the dump.
    """
    try:
        program = read_program(graph, pathlib.Path(path).resolve().parent)
    except StorageError as error:
        sys.exit(f"run.py: {error}")
    print(program.facts["title"])
    for note in program.notes:
        print(f"note: {note}")
    try:
        difference, random = check(program, expected_of(program))
    except Exception as error:
        kind = type(error).__name__
        known = program.facts.get("error")
        same = " (as it was)" if known and known[0] == kind else ""
        print(f"error{same}: {kind}: {error}")
        sys.exit(1)
    if random:
        print(f"note: {len(random)} results are random: only their shapes and dtypes are compared")
    print(f"largest difference from eager torch: {difference.largest:.3g} on the result's scale")
    for text in difference.wrong:
        print(f"wrong: {text}")
    print("wrong" if difference.wrong else "right")
    sys.exit(1 if difference.wrong else 0)


def expected_of(program: SavedProgram) -> list[Any]:
    """Eager torch's results, at the seed that `check` runs the program at."""
    torch.manual_seed(0)
    return program.eager()


def check(program: SavedProgram, expected: list[Any]) -> tuple[Difference, frozenset[int]]:
    """Compare the program with eager torch; also the results, by number, that are random.

    Raises:
        Exception: whatever compiling or running it raises.
    """
    random: frozenset[int] = frozenset()
    if program.request.options.rng != "torch":
        torch.manual_seed(1)
        random = changed(program.eager(), expected)
    noise = [0.0] * len(expected)
    for seed in range(3):
        torch.manual_seed(0)
        others = program.eager(rounded=seed)
        pairs = zip(noise, others, expected, strict=True)
        noise = [max(known, noise_of(other, wanted)) for known, other, wanted in pairs]
    torch.manual_seed(0)
    skip = random | program.given_back
    return compare(program.compiled(), expected, skip, noise), random


def changed(results: list[object], others: list[object]) -> frozenset[int]:
    """The results, by number, that are others in two calls of eager torch: random ones."""
    pairs = enumerate(zip(results, others, strict=True))
    return frozenset(i for i, (x, y) in pairs if compare([x], [y]).largest > 0)
