"""The tests of the folder `lazy`, in processes that have the device from their start."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.lazy.conftest import COPIES, HERE

# The processes run side by side, so each has the half of the files.
FILES = sorted(HERE.glob("test_*.py"))
COPIED = [HERE / name for name in ("test_arithmetic.py", "test_compiled.py", "test_moves.py")]


def run(config, files, **environment):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", config.option.markexpr, "--draw", config.option.draw]
    # That process ends itself where a test hangs (pyproject.toml), before this one would.
    command += ["-o", "faulthandler_timeout=240"]
    done = subprocess.run(
        [*command, *map(str, files)],
        cwd=pathlib.Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    if done.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        pytest.fail(f"{done.stdout[-8000:]}\n{done.stderr[-8000:]}", pytrace=False)


@pytest.mark.parametrize("half", [0, 1])
def test_the_folder(half, request):
    run(request.config, FILES[half::2])


def test_without_shared_memory(request):
    """Which memory is shared is settled when the first client is made."""
    run(request.config, COPIED, **{COPIES: "1"})
