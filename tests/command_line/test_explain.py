"""`explain` and what a target may be; the table of commands."""

import subprocess
import sys

import pytest

from tests.test_structure import ROOT
from xla_dynamo.command_line import COMMANDS, main


def test_an_example(models, capsys):
    assert main(["explain", "some_models:example", "--html", "report.html"]) == 0
    said = capsys.readouterr().out
    assert "1 graph, 0 graph breaks" in said
    assert "forward" in said
    assert "stablehlo" in (models / "report.html").read_text()


def test_inputs(models, capsys):
    status = main(
        ["explain", "some_models:Model", "--input", "float32[2,8]", "--no-grad", "--dynamic"]
    )
    assert status == 0
    assert "inference" in capsys.readouterr().out
    given = ["--input", "float64[5,2]", "--input", "int64[3]", "--option", "fallback=error"]
    assert main(["explain", "some_models:lookup", *given]) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["some_models"], 2, "write module:name"),
        (["no_such_module:f"], 2, "no module 'no_such_module' here"),
        (["some_models:gone"], 2, "some_models has no 'gone'"),
        (["some_models:number"], 2, "is a int: it cannot be called"),
        (["some_models:nothing"], 2, r"returned a int, not (fn, args)"),
        (["some_models:bare"], 2, r"returned a Tensor where (fn, args)"),
        (["some_models:Model", "--input", "float32"], 2, "write a tensor as float32[8,64]"),
        (["some_models:Model", "--input", "float99[3]"], 2, "write a tensor as float32[8,64]"),
        (["some_models:example", "--option", "freeze"], 2, "write NAME=VALUE"),
        (["some_models:example", "--option", "frieze=True"], 1, "unknown option 'frieze'"),
        (["some_models:example", "--option", "freeze=3"], 1, "freeze"),
    ],
)
def test_errors(models, capsys, arguments, status, said):
    assert main(["explain", *arguments]) == status
    shown = capsys.readouterr().err
    assert shown.startswith("xla-dynamo: ")
    assert said in shown


def test_help_needs_neither_torch_nor_jax():
    code = (
        "import sys; from xla_dynamo.command_line import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0, end\n"
        "assert not {'torch', 'jax', 'numpy', 'rich'} & set(sys.modules)\n"
    )
    for arguments in (["--help"], *([name, "--help"] for name in COMMANDS)):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "usage: xla-dynamo" in done.stdout


def test_no_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
