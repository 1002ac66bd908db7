"""Which cases of a sweep a run of the suite takes: a draw by a seed that changes with the commit.

A test marked `every(n)` runs one of n of its cases, and other cases at another commit, so that many
runs cover all of them. What found a fault once stays in every run: `FOUND` has it. `--draw SEED`
repeats a run's draw, which its header prints; `make test-all` runs all cases.
"""

import fnmatch
import os
import subprocess
import zlib
from pathlib import Path

import pytest

DRAW = "XLA_DYNAMO_TESTS_DRAW"
# Cases that found a fault, by their name under tests/: an empty batch, images fewer than samples, a
# bicubic border of bytes, Bessel functions at infinity, an operator that cannot be functional, a
# convolution that reads beyond its image, a cache with a window.
FOUND = (
    "libraries/test_transformers_generation.py::test_a_growing_cache*mistral*",
    "lowerings/test_convolution_gradients.py::*one column*",
    "test_op_sweep.py::*-cdist-*",
    "test_op_sweep.py::*-nn.functional.fractional_max_pool?d-*",
    "test_op_sweep.py::*-polygamma*",
    "test_op_sweep.py::*special-special.*bessel*",
    "test_whole_resampling.py::test_bytes_are_eagers*bicubic*",
)


# What these files test may depend on LLVM: exact arithmetic, sums, what it makes of NaN, options
# that other processes have, and programs that run for long.
OPTIMIZED = (
    "test_cache_processes",
    "test_contraction_barriers",
    "test_exact_arithmetic",
    "test_examples",
    "test_op_sweep",
    "test_random_edges",
    "test_split_reductions",
    "test_storage",
    "test_train_models",
    "test_xla_options",
)


def seed_of_commit() -> str:
    """The commit that is checked out, or "0" where there is no git; for copies of a checkout, DRAW.

    DRAW is a variable of the environment.
    """
    if DRAW in os.environ:
        return os.environ[DRAW]
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        run = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "0"
    return run.stdout.strip()


def is_optimized(path: Path, seed: str) -> bool:
    """Whether LLVM optimizes the programs of a file of tests: of three files, those of one."""
    return path.stem in OPTIMIZED or number(seed, path.stem) % 3 == 0


def number(seed: str, *names: object) -> int:
    """A number of 32 bits that depends on the seed, and differs from name to name."""
    return zlib.crc32(repr((seed, names)).encode())


def mark_slow(items: list[pytest.Item], seed: str) -> None:
    """Mark the cases of tests marked `every(n)` that are not drawn as slow ones."""
    seen: dict[tuple, int] = {}
    for item in items:
        mark = item.get_closest_marker("every")
        if not mark or item.get_closest_marker("slow"):
            continue
        group = (item.nodeid.partition("[")[0], *mark.args)
        index = seen[group] = seen.get(group, -1) + 1
        if index % mark.args[0] != number(seed, *map(str, group)) % mark.args[0]:
            name = item.nodeid.removeprefix("tests/")
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in FOUND):
                item.add_marker(pytest.mark.slow)
