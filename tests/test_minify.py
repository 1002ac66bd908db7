"""`xla-dynamo minify`: a program that fails becomes small, and fails in the same way."""

import os
import runpy
import subprocess
import sys
import textwrap

import pytest
import torch

import xla_dynamo
from tests.rewriting_passes import operations_named, sine_for_tanh
from tests.test_structure import ROOT
from xla_dynamo import command_line
from xla_dynamo.errors import StorageError
from xla_dynamo.reproduction.minify import minify

pytestmark = pytest.mark.usefixtures("cold")


def model(x, w):
    for n in range(30):
        x = x + torch.sigmoid(x @ w) * n
    x = torch.tanh(x / 100)
    for _ in range(30):
        x = torch.exp(-x.abs()) + w
    return x.sum(0), x.argmax()


def raises(module, target):
    if operations_named(module, "stablehlo.tanh"):
        raise ZeroDivisionError("no tanh")


@pytest.fixture
def dump(tmp_path, monkeypatch):
    """The folder of a program's dump, which a pass may have made wrong."""
    monkeypatch.setenv("XLA_DYNAMO_DUMP", str(tmp_path / "dumps"))

    def made(failing=None):
        context = pytest.raises(failing) if failing else torch.no_grad()
        with context:
            torch.compile(model, backend="openxla")(torch.randn(8, 8), torch.randn(8, 8))
        (folder,) = (tmp_path / "dumps").iterdir()
        return folder

    return made


def test_a_wrong_pass(dump, capsys):
    with xla_dynamo.register_pass(sine_for_tanh, identity="sine-1"):
        folder = dump()
        assert command_line.main(["minify", str(folder / "run.py")]) == 0
        small = folder / "minified" / "run.py"
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(small), run_name="__main__")
        assert ended.value.code == 1
    printed = capsys.readouterr()
    assert "the program gives wrong results" in printed.err
    assert "the pass sine-1 makes the results wrong" in printed.out
    assert "aten.tanh" in small.read_text()
    assert small.read_text().count("torch.ops.aten") <= 2


def test_a_pass_that_raises(dump):
    with xla_dynamo.register_pass(raises, identity="raises-1"):
        folder = dump(failing=Exception)
        made = minify(folder / "run.py")
    assert made.failure == "raises LoweringError"
    assert made.nodes[0] > 150
    assert made.nodes[1] <= 2
    assert made.bisection.guilty == "raises-1"


def test_what_cannot_be_made_small(dump, capsys, tmp_path):
    folder = dump()
    assert minify(folder / "run.py") is None
    assert command_line.main(["minify", str(folder / "run.py")]) == 1
    assert "gives eager's results" in capsys.readouterr().err
    assert not (folder / "minified").exists()
    with pytest.raises(StorageError, match="has something"):
        minify(folder / "run.py", folder)
    for wrong in (tmp_path / "none.py", tmp_path):
        assert command_line.main(["minify", str(wrong)]) == 1
        assert "is not the run.py of a dump" in capsys.readouterr().err


@pytest.mark.slow  # a process for each trial
def test_a_process_that_dies(tmp_path):
    (tmp_path / "dying.py").write_text(
        textwrap.dedent("""
            import os
            import xla_dynamo
            from tests.rewriting_passes import operations_named

            def dies(module, target):
                if operations_named(module, "stablehlo.tanh"):
                    os.abort()

            xla_dynamo.register_pass(dies, identity="dies-1")
        """)
    )
    code = "import dying, tests.test_minify as t, torch;"
    code += "torch.compile(t.model, backend='openxla')(torch.randn(8, 8), torch.randn(8, 8))"
    kept = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    dumping = {**kept, "XLA_DYNAMO_DUMP": str(tmp_path / "dumps")}
    assert subprocess.run([sys.executable, "-c", code], env=dumping).returncode < 0
    (folder,) = (tmp_path / "dumps").iterdir()
    command = [sys.executable, "-m", "xla_dynamo", "minify", str(folder / "run.py")]
    ended = subprocess.run(command, env=kept, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "dies by signal 6 with 1 of " in ended.stdout
