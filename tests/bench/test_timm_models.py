"""Models of timm in the benchmark, and lots drawn from them."""

import sys

import pytest
import torch

from bench import __main__ as command_line
from bench.models import MODELS, build
from bench.models.timm_models import draw


def test_a_model_of_timm():
    name = "timm/mobilenetv3_small_050"
    assert not MODELS.unknown([name, "bert"])
    assert MODELS.unknown(["timm/nothing", "nothing"]) == ["timm/nothing", "nothing"]
    assert name not in set(MODELS)  # tests and suites go over the others
    with torch.no_grad():
        assert build(name, "full")(**MODELS[name].inputs("full", 2)).shape == (2, 1000)
    with pytest.raises(ValueError, match="one size"):
        build(name, "tiny")


def test_a_lot(capsys):
    drawn = draw(4, 7, 30e6)
    assert drawn == draw(4, 7, 30e6) != draw(4, 8, 30e6)
    assert len(set(drawn)) == 4
    assert not MODELS.unknown(drawn)
    for name in drawn:
        assert sum(p.numel() for p in MODELS[name].make("full").parameters()) < 30e6
    assert command_line.main(["draw", "4", "--seed", "7"]) == 0
    assert capsys.readouterr().out.strip() == ",".join(drawn)


def test_without_timm(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert MODELS.unknown(["timm/resnet18"])
    with pytest.raises(SystemExit):
        command_line.main(["draw"])
    assert "timm is not installed" in capsys.readouterr().err
