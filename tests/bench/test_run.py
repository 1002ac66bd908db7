"""The benchmark's runs: same weights for all, wrong results, runs that go on; wrong arguments."""

import json

import pytest
import torch

from bench import __main__ as command_line
from bench import bounds, report, run
from bench.results import Results, failures, machine
from bench.worker import GOLDEN, Subject, Task
from tests.bench.impostor import impostor

pytestmark = [pytest.mark.filterwarnings("ignore")]


def test_other_environments_get_the_same_weights(tmp_path):
    """Of float64, from the worker whose results all are compared with."""
    task, path = Task("dcgan_generator", size="tiny", batch=2), str(tmp_path / "weights.pt")
    golden, other = Subject(task, GOLDEN), Subject(task, "eager")
    with torch.no_grad():
        for tensor in (*golden.model.parameters(), *golden.model.buffers()):
            if tensor.is_floating_point():
                tensor.copy_(tensor.float() + 1)
    golden.save_weights(path)
    golden.first(), other.first()
    golden.save(results := str(tmp_path / "results.pt"))
    assert other.compare(results)["error"] > 1e-3
    other = Subject(task, "eager", weights=path)
    other.first()
    assert other.compare(results)["error"] < 1e-5


def test_wrong_results_are_told_and_not_timed(tmp_path, monkeypatch):
    """The other backends go on."""
    lying = impostor(tmp_path, "reply(seconds=1.0, error=0.5)")
    real = run.python_of
    names = iter([real(""), real(""), lying])  # the golden one, eager, ours
    monkeypatch.setattr(run, "python_of", lambda environment: next(names))
    measured = run.ModelRun(
        Task("dlrm", size="tiny", batch=2), ["eager", "openxla"], run.Limits(), lambda step: None
    )
    rows = measured.measure(rounds=2, seconds=0.01)["backends"]
    assert rows["openxla"]["status"] == "wrong"
    assert "5.0e-01" in rows["openxla"]["message"]
    assert "ms" not in rows["openxla"]
    assert rows["eager"]["status"] == "ok"
    assert len(rows["eager"]["ms"]) == 2


@pytest.mark.parametrize(
    ("mode", "times"), [pytest.param("training", 2, marks=pytest.mark.slow), ("inference", 1)]
)
def test_a_wrong_training_step_is_measured_on_other_inputs(tmp_path, monkeypatch, mode, times):
    """Where the compiler is right and an activation was next to relu's kink, they agree."""
    lying = impostor(tmp_path, "reply(seconds=1.0, error=0.5)")
    real = run.python_of
    names = iter([real(""), real(""), lying] + [real("")] * 3)
    monkeypatch.setattr(run, "python_of", lambda environment: next(names))
    task = Task("dlrm", mode, size="tiny", batch=2)
    record = run.measure(task, ["eager", "openxla"], run.Limits(), lambda step: None, 1, 0.01)
    results = Results(tmp_path / "results.jsonl")
    results.append(record)
    assert record["seed"] == times
    name = "dlrm, other inputs" if mode == "training" else "dlrm"
    assert [failure[:3] for failure in failures(results)] == [(name, "openxla", "wrong")]


def asked(path, *more, models="super_resolution"):
    settings = f"--size tiny --rounds 2 --seconds 0.01 --models {models} --output {path}"
    return command_line.main(["run", *settings.split(), "--backends", "eager,openxla", *more])


def test_a_run_is_written_resumed_and_reported(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    assert asked(path, "--overhead") == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["settings"]["backends"] == ["eager", "openxla"]
    assert lines[0]["versions"]["torch"]
    ours = lines[1]["backends"]["openxla"]
    assert ours["status"] == "ok"
    assert (ours["graphs"], ours["executables"], ours["fallbacks"]) == (1, 1, 0)
    assert 0 < ours["error"] < 1e-5
    assert ours["peak_mb"] > 100
    assert ours["cold_s"] > ours["ms"][0] / 1e3
    # What a call costs is timed on request.
    assert all(entry["overhead_us"] > 1 for entry in lines[1]["backends"].values())
    assert "openxla tiny us" in " ".join(report.columns(Results(path)))
    assert "a call at the tiny size" in capsys.readouterr().out
    moved = json.dumps({**lines[0], "machine": "a machine of before"})
    cut = '{"model": "cut sho'  # as a crash leaves it
    path.write_text("\n".join([moved, json.dumps(lines[1]), cut]))
    assert asked(path, "--overhead", models="super_resolution,dlrm") == 0
    results = Results(path)
    assert list(results.models) == ["super_resolution", "dlrm"]
    assert results.models["super_resolution"] == lines[1]  # was not measured again
    assert (tmp_path / "results.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "results.html").read_text()
    assert "dlrm" in page
    assert "data:image/png;base64," in page
    assert "\n| dlrm | " in (tmp_path / "results.md").read_text()
    printed = capsys.readouterr().out
    assert "geometric means of openxla" in printed
    # Times of two machines are no times of one.
    assert "so far a machine of before" in printed
    assert [run["machine"] for run in results.runs] == ["a machine of before", machine()]
    assert f" and {machine()}; torch " in report.caption(results)


def test_training(tmp_path):
    path = tmp_path / "training.jsonl"
    more = ("--mode", "training", "--backends", "eager,openxla-step")
    assert asked(path, *more) == 0
    rows = Results(path).models["super_resolution"]["backends"]
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows["openxla-step"]["error"] < 1e-2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--models", "bart,nothing"], "unknown models"),
        (["run", "--models", ""], "unknown models"),
        (["run", "--models", "timm/nothing"], "unknown models"),
        (["draw", "0"], "must be at least 1"),
        (["run", "--backends", "eager,magic"], "unknown backends"),
        (["run", "--backends", "eager,torchax"], "python -m bench peers pytorch_xla"),
        (["run", "--rounds", "0"], "must be at least 1"),
        (["run", "--batch", "0"], "must be at least 1"),
        (["run", "--threads", "0"], "must be at least 1"),
        (["run", "--seconds", "nan"], "must be above 0"),
        (["run", "--output", "/"], "Is a directory: '/'"),
        (["run", "--output", "/dev/null/results.jsonl"], "File exists"),
        (["serve", "--clients", "0"], "must be at least 1"),
        (["report", "/nowhere.jsonl"], "there is no file"),
        (["report", "/dev/null"], "there are no results"),
        (["report", "/"], "Is a directory: '/'"),
        (["compare", "/dev/null", "/dev/null"], "there are no results"),
    ],
)
def test_wrong_arguments(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(command_line.peers, "available", lambda environment: not environment)
    with pytest.raises(SystemExit):
        command_line.main(arguments)
    assert message in capsys.readouterr().err


def test_other_settings_need_another_file(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text('{"run": "", "settings": {"mode": "training"}}\n')
    with pytest.raises(SystemExit):
        asked(path)
    assert "other settings" in capsys.readouterr().err


def test_what_bounds_a_model():
    assert bounds.covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    assert 0 < bounds.share(Task("nanogpt", size="tiny", batch=2)) < 1
    assert 0 < bounds.share(Task("nanogpt", size="tiny", batch=2, dtype="bfloat16")) < 1
