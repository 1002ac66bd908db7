"""Scripts in PyTorch/XLA's style run with no line changed, and compare with eager themselves."""

import os
import pathlib
import subprocess
import sys

import pytest

SCRIPTS = pathlib.Path(__file__).parent / "scripts"
TOLD = {
    "exported": "ended ['--flag']",
    "fake_mnist": "ended 6",
    "layers_as_a_loop": "ended",
    "sharded": "ended",
    "tensors": "[12., 12.]",
    "two_processes": "ended 1",
}
ARGUMENTS = {"exported": ["--flag"], "fake_mnist": ["--steps", "6"]}


def run(*arguments, **environment):
    """The process of a command."""
    command = [sys.executable, "-m", "xla_dynamo.torch_xla", *map(str, arguments)]
    environment = {**os.environ, "CPU_NUM_DEVICES": "1", **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", TOLD)
def test_scripts(name):
    devices = "8" if name == "sharded" else "1"
    path = SCRIPTS / f"{name}.py"
    told = run(path, *ARGUMENTS.get(name, []), CPU_NUM_DEVICES=devices)
    assert told.returncode == 0, told.stderr
    assert TOLD[name] in told.stdout


def test_every_script_is_run():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(TOLD)


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
