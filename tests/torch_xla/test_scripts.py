"""Scripts in PyTorch/XLA's style run with no line changed, and compare with eager themselves."""

import os
import pathlib
import subprocess
import sys

import pytest

from tests import fresh_process

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
TOLD = {
    "accelerated": "ended",
    "accumulated": "ended",
    "checkpoints": "ended",
    "exported": "ended ['--flag']",
    "fake_mnist": "ended 6",
    "generation": "ended",
    "kernels": "ended 3.0",
    "layers_as_a_loop": "ended",
    "profiled": "ended",
    "sharded": "ended",
    "tensors": "[12., 12.]",
    "two_processes": "ended 1",
}
# Those that compile for long.
LONG = {
    "compiled_steps": "ended",
    "denoising": "ended",
    "fully_sharded_decoder": "ended 8",
    "launched": "ended 2",
    "resnet": "ended 4",
    "scans": "ended",
}
ARGUMENTS = {"exported": ["--flag"], "fake_mnist": ["--steps", "6"]}
# Those that start processes of their own, for which an interpreter reads the script again.
WITH_PROCESSES = {"launched", "two_processes"}
DEVICES = {"checkpoints": "8", "fully_sharded_decoder": "8", "launched": "2", "sharded": "8"}


def run(*arguments, **environment):
    """The process of a command."""
    command = [sys.executable, "-m", "xla_dynamo.torch_xla", *map(str, arguments)]
    environment = {**os.environ, "CPU_NUM_DEVICES": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def check(name, wanted):
    arguments = (str(SCRIPTS / f"{name}.py"), *ARGUMENTS.get(name, []))
    environment = {"CPU_NUM_DEVICES": DEVICES.get(name, "1")}
    if name in WITH_PROCESSES:
        told = run(*arguments, **environment)
    else:  # a fork, which need not import everything anew
        told = fresh_process.run_module("xla_dynamo.torch_xla", *arguments, **environment)
    assert told.returncode == 0, told.stderr
    assert wanted in told.stdout


@pytest.mark.parametrize("name", TOLD)
def test_scripts(name):
    check(name, TOLD[name])


@pytest.mark.every(6)
@pytest.mark.parametrize("name", LONG)
def test_scripts_that_compile_for_long(name):
    check(name, LONG[name])


def test_every_script_is_run():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(TOLD) | set(LONG)


def test_a_module_runs_as_a_script(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import sys, torch_xla\nprint(__name__, sys.argv[1:], torch_xla.device())\n"
    )
    command = [sys.executable, "-m", "xla_dynamo.torch_xla", "-m", "mine", "a", "-b"]
    told = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
    )
    assert told.stdout.split("\n")[0] == "__main__ ['a', '-b'] xla:0"


def test_wrong_commands_say_how():
    for arguments in ((), ("nothing.py",)):
        told = run(*arguments)
        assert told.returncode == 1
        assert "usage: python -m xla_dynamo.torch_xla" in told.stderr


def test_what_a_script_raises_is_told_with_its_lines(tmp_path):
    (tmp_path / "wrong.py").write_text("import torch_xla\n\nraise KeyError('mine')\n")
    told = run(tmp_path / "wrong.py")
    assert told.returncode == 1
    assert 'wrong.py", line 3' in told.stderr
    assert "KeyError: 'mine'" in told.stderr
