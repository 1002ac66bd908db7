"""What `python -m bench start` prints of processes that start."""

import subprocess

import pytest

from bench import __main__ as command_line
from bench import start
from bench.started import STAGES


def rows(text):
    found = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines()]
    return {row[0]: row[1:] for row in found if len(row) == len(STAGES) + 3}


def test_warm_processes_have_medians_and_take_turns(monkeypatch, capsys):
    seconds = {"inductor": iter([30, 6, 2, 9]), "openxla": iter([10, 4, 2, 3])}
    asked = []

    def process(model, backend, options, folder):
        asked.append(backend)
        total = next(seconds[backend])
        return {**dict.fromkeys(STAGES, 0.0), "Dynamo": total / 2, "backend": total / 2}

    monkeypatch.setattr(start, "_process", process)
    arguments = ["start", "--models", "bert", "--backends", "inductor", "openxla", "--warm", "3"]
    assert command_line.main(arguments) == 0
    assert asked == ["inductor", "openxla"] * 4
    out = capsys.readouterr().out
    found = rows(out)
    assert found["inductor cold"][-2:] == ["30.00", "5.00"]
    assert found["inductor warm"][-2:] == ["6.00", "1.00"]
    assert found["openxla warm"][3:5] == ["1.50", "1.50"]
    assert "openxla warm / inductor warm, geometric mean of 1: 0.50" in out


def test_a_process_that_fails_is_told(monkeypatch, capsys):
    def process(model, backend, options, folder):
        raise subprocess.CalledProcessError(1, "python", stderr="Traceback\nKeyError: 'bert'\n")

    monkeypatch.setattr(start, "_process", process)
    assert command_line.main(["start", "--models", "bert"]) == 1
    assert "bert: failed: KeyError: 'bert'" in capsys.readouterr().out


@pytest.mark.slow
def test_processes_find_what_others_left(capsys):
    """Each with a folder of its own, cold and then warm."""
    arguments = ["start", "--models", "nanogpt", "--size", "tiny", "--warm", "1"]
    assert command_line.main([*arguments, "--backends", "openxla", "exported"]) == 0
    found = rows(capsys.readouterr().out)
    assert list(found)[-4:] == ["openxla cold", "exported cold", "openxla warm", "exported warm"]
    stages = {name: dict(zip(STAGES, map(float, row), strict=False)) for name, row in found.items()
              if name.endswith(("cold", "warm"))}  # fmt: skip
    assert stages["openxla warm"]["backend"] < stages["openxla cold"]["backend"]
    assert stages["exported warm"]["Dynamo"] == 0 < stages["exported cold"]["Dynamo"]
