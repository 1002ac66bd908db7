"""`export`: the folders that it writes are those that the loaders read."""

import numpy as np
import pytest
import torch

from xla_dynamo.command_line import main
from xla_dynamo.stablehlo import NumpyGraphModule, StableHLOGraphModule


def test_an_example(models, capsys):
    assert main(["export", "some_models:example", "--out", "made/folder"]) == 0
    said = capsys.readouterr().out
    assert "some_models:example: (float32[3, 8], 2.0) -> (float32[3, 4])" in said
    assert "made/folder: " in said
    import some_models

    model, (x,), kwargs = some_models.example()
    expected = model(x, **kwargs).detach()
    module = StableHLOGraphModule.load(models / "made" / "folder")
    torch.testing.assert_close(module(x, **kwargs), expected)
    found = NumpyGraphModule.load(models / "made" / "folder")(x.numpy(), **kwargs)
    torch.testing.assert_close(torch.from_numpy(np.asarray(found)), expected)


def test_dynamic_dimensions(models, capsys):
    given = ["--input", "float32[2,4]", "--dynamic-shape", "x:0=batch"]
    assert main(["export", "some_models:wave", *given, "--out", "folder"]) == 0
    assert "(float32[batch, 4]) -> (float32[batch, 4])" in capsys.readouterr().out
    module, x = StableHLOGraphModule.load("folder"), torch.randn(7, 4)
    torch.testing.assert_close(module(x), x.sin() * 2)


def test_nested_inputs_at_an_older_version(models):
    given = ["--stablehlo-version", "1.4.0", "--out", "folder"]
    assert main(["export", "some_models:nested", *given]) == 0
    assert b"StableHLO_v1.4.0" in (models / "folder" / "module.mlirbc").read_bytes()
    import some_models

    fn, args, kwargs = some_models.nested()
    torch.testing.assert_close(
        StableHLOGraphModule.load("folder")(*args, **kwargs), fn(*args, **kwargs)
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["no_such_module:f"], 2, "no module 'no_such_module' here"),
        (["some_models:Model", "--input", "float32[2,9]"], 2, "got [2, 9] X [8, 4]"),
        (["some_models:wave", "--input", "float32[1|2]"], 2, "made of one call"),
        (["some_models:wave", "--input", "int64[2]", "--dynamic-shape", "x"], 2, "INPUT:DIM=NAME"),
        (["some_models:wave", "--input", "int64[2]", "--dynamic-shape", "x:1=n"], 2, "1 dimension"),
        (
            ["some_models:wave", "--input", "int64[2]", "--dynamic-shape", "y:0=n"],
            2,
            "there are: x",
        ),
        (["some_models:wave", "--input", "int64[2]", "--stablehlo-version", "9"], 1, "'9'"),
        (["some_models:looked_up"], 1, "aten.nonzero"),
    ],
)
def test_errors(models, capsys, arguments, status, said):
    assert main(["export", *arguments, "--out", "folder"]) == status
    shown = capsys.readouterr().err
    assert shown.startswith("xla-dynamo: ")
    assert said in shown
    assert "Traceback" not in shown
    assert not (models / "folder").exists()


def test_a_folder_of_something_else_is_kept(models, capsys):
    (models / "folder").mkdir()
    (models / "folder" / "notes.txt").write_text("mine")
    assert main(["export", "some_models:example", "--out", "folder"]) == 1
    assert "holds no exported program" in capsys.readouterr().err
    assert (models / "folder" / "notes.txt").read_text() == "mine"
