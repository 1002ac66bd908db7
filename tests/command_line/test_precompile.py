"""`precompile`: what it writes is what a later process finds. Each test begins cold."""

import os
import subprocess
import sys

import pytest

from tests.runtime.disk_caches import cache_in
from tests.test_structure import ROOT
from xla_dynamo.command_line import main

LATER = """
import sys, torch, some_models
from xla_dynamo import metrics
model = some_models.Model().eval()
f = torch.compile(model, backend="openxla", options={"libraries": ["torch"]})
with torch.no_grad():
    for size in (2, 5):
        torch.compiler.reset()
        x = torch.ones(size, 8)
        torch.testing.assert_close(f(x), model(x))
names = ("PersistentCacheProgramHit", "PersistentCacheHit", "UncachedCompile")
print(*(metrics.counter_value(name) or 0 for name in names))
"""
INFERENCE = ["--no-grad", "--option", "libraries=['torch']"]


@pytest.fixture
def folder(tmp_path):
    """The folder of the disk cache, empty."""
    with cache_in(tmp_path / "cache") as folder:
        yield folder


def test_another_process_finds_what_was_compiled(models, tmp_path):
    """Both in fresh processes: the first one cold, the second one warm."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "XLA_DYNAMO_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = ["-m", "xla_dynamo", "precompile", "some_models:Model", "--input", "float32[2|5,8]"]

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run(*command, *INFERENCE)
    assert "some_models:Model: 2 calls" in said
    assert said.count("  written  executable") == said.count("  written  program") == 2
    assert len(list((tmp_path / "cache").iterdir())) == 4
    assert run("-c", LATER).split() == ["2", "2", "0"]


def test_what_was_written_and_what_was_found(models, folder, capsys):
    given = ["some_models:Model", "--input", "float32[3,8]", *INFERENCE]
    assert main(["precompile", *given]) == 0
    said = capsys.readouterr().out
    assert "some_models:Model: 1 call" in said
    assert (said.count("  written  "), said.count("  found  ")) == (2, 0)
    written = list(folder.written)
    assert {name.partition("-")[0] for name in written} == {"executable", "program"}
    assert main(["precompile", *given]) == 0
    said = capsys.readouterr().out
    assert (said.count("  written  "), said.count("  found  ")) == (0, 2)
    assert folder.written == written


def test_parameters_stay_and_keyword_arguments_are_passed(models, folder, capsys):
    """Two targets, with gradients: of these only executables are kept."""
    assert main(["precompile", "some_models:example", "some_models:example"]) == 0
    assert capsys.readouterr().out.count("some_models:example: 1 call") == 2
    assert {name.partition("-")[0] for name in folder.written} == {"executable"}


def test_what_is_compiled_already_keeps_its_options(models, folder, capsys):
    """A later process finds what its own options ask for: cold, then warm."""
    assert main(["precompile", "some_models:compiled", "--no-grad"]) == 0
    given = ["some_models:Model", "--input", "float32[3,8]", *INFERENCE]
    assert main(["precompile", *given]) == 0
    assert len(folder.written) == 2


def test_dynamic_sizes(models, folder, capsys):
    """The graph is traced once; a program and an executable are there for batches up to 4 and 8."""
    given = ["some_models:wave", "--input", "float32[2|3|5,8]", "--dynamic"]
    assert main(["precompile", *given]) == 0
    assert "some_models:wave: 3 calls" in capsys.readouterr().out
    kinds = sorted(name.partition("-")[0] for name in folder.written)
    assert kinds == ["executable"] * 2 + ["graph"] + ["program"] * 2


def test_what_cannot_be_kept_is_told(models, folder, capsys, monkeypatch):
    """Executables that call what the cache has no place for; the program is kept all the same."""
    monkeypatch.setattr(
        "xla_dynamo.runtime.saved_executables.calls_left_out", lambda text: ["__onednn$matmul"]
    )
    assert main(["precompile", "some_models:wave", "--input", "float32[4]"]) == 0
    said = capsys.readouterr().out
    assert "not kept: no place for an executable that calls __onednn$matmul" in said
    assert "--option \"libraries=['torch']\" compiles without oneDNN" in said
    assert [name.partition("-")[0] for name in folder.written] == ["program"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["no_such_module:f"], 2, "no module 'no_such_module' here"),
        (["some_models:number"], 2, "is a int: it cannot be called"),
        (["some_models:wave"], 2, "cannot be called without arguments"),
        (["some_models:Model", "--input", "float32[2,9]"], 2, "got [2, 9] X [8, 4]"),
        (["some_models:wave", "--input", "int64[2]", "--input", "int64[2]"], 2, "TypeError"),
        (["some_models:wave", "--input", "int64[2|x]"], 2, "write a tensor as float32[8,64]"),
        (["some_models:wave", "--input", "int64[1|2,1|2|3]"], 2, "equally many"),
        (["some_models:wave", "--input", "int64[2]", "--option", "a=b"], 1, "unknown option"),
        (["some_models:broken", "--input", "float32[2]"], 2, "KeyError: 'gone'\n  File"),
        (["some_models:step"], 1, "precompile cannot call a train_step"),
    ],
)
def test_errors(models, folder, capsys, arguments, status, said):
    assert main(["precompile", *arguments]) == status
    shown = capsys.readouterr().err
    assert shown.startswith("xla-dynamo: ")
    assert said in shown
    assert "Traceback" not in shown
    assert not folder.written


def test_a_folder_that_cannot_be_written_to(models, tmp_path, capsys):
    given = ["precompile", "some_models:wave", "--input", "float32[2]"]
    with cache_in(tmp_path / "cache", readonly=True):
        assert main(given) == 1
        assert "only to be read" in capsys.readouterr().err
    with cache_in(tmp_path / "some_models.py"):
        assert main(given) == 1
        assert "cannot be written to" in capsys.readouterr().err
    with cache_in(None):
        assert main(given) == 1
        assert "the disk cache is off" in capsys.readouterr().err
