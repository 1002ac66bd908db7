"""The lazy device where buffers and tensors share no memory, as on platforms unknown to torch."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests.lazy.conftest import COPIES

FOLDER = pathlib.Path(__file__).parent
FILES = ("test_arithmetic.py", "test_compiled.py", "test_moves.py")


def test_the_same_without_shared_memory(request):
    """In a fresh process: which memory is shared is settled when the first client is made."""
    config = request.config
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-m", config.option.markexpr, "--draw", config.option.draw]
    # That process ends itself where a test hangs (pyproject.toml), before this one would.
    command += ["-o", "faulthandler_timeout=240"]
    run = subprocess.run(
        [*command, *(str(FOLDER / "lazy" / name) for name in FILES)],
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
        env={**os.environ, COPIES: "1"},
    )
    if run.returncode not in (0, pytest.ExitCode.NO_TESTS_COLLECTED):
        pytest.fail(f"{run.stdout[-8000:]}\n{run.stderr[-8000:]}", pytrace=False)
