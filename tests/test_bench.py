"""The benchmark: what it writes, what it does about failures, and that it can go on."""

import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
from rich.console import Console

from bench import __main__ as command_line
from bench import bounds, report, run, serve, server
from bench.compare import compare
from bench.processes import Worker, WorkerFailed
from bench.results import Results, failures, geometric_mean, latency, machine, speedup
from bench.worker import GOLDEN, Subject, Task

pytestmark = [pytest.mark.filterwarnings("ignore")]


def impostor(folder, *lines):
    """A program that the runner takes for an interpreter, and that answers with these lines."""
    path = folder / "python"
    body = textwrap.dedent("\n".join(lines))
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, time\n"
        "replies = os.fdopen(int(sys.argv[3]), 'w')\n"
        "def reply(**what): print(json.dumps(what), file=replies, flush=True)\n"
        "for line in sys.stdin:\n" + textwrap.indent(body, "    ") + "\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("reply(raised='ValueError: no')", "error", "ValueError: no"),
        ("time.sleep(60)", "timeout", "longer than 2 s"),
        ("print('last words', flush=True); os._exit(3)", "crash", "last words"),
        ("x = bytearray(400_000_000); time.sleep(60)", "memory", "more than 0.2 GB"),
    ],
)
def test_workers_that_fail(tmp_path, line, status, message):
    with (
        Worker(environment={}, python=impostor(tmp_path, line), memory_gb=0.2) as worker,
        pytest.raises(WorkerFailed, match=message) as failure,
    ):
        worker.ask("first", 2 if status == "timeout" else 30)
    assert failure.value.status == status


def test_workers_rest_between_questions(tmp_path):
    """What one still does would take a core from whoever is measured next."""
    with Worker(
        environment={}, python=impostor(tmp_path, "reply(pid=os.getpid())"), memory_gb=1
    ) as worker:
        process = psutil.Process(worker.ask("first", 30)["pid"])
        deadline = time.monotonic() + 10
        while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.status() == psutil.STATUS_STOPPED
        assert worker.ask("first", 30)["pid"] == process.pid


def test_workers_end_with_the_runner():
    """Also one that rests, when the runner is killed."""
    runner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
            from bench.processes import Worker
            worker = Worker(environment={}, memory_gb=4)
            worker.ask("prepare", 60, task={"model": "sac_actor", "size": "tiny"}, backend="eager")
            print(worker._process.pid, flush=True)
            input()
        """),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    worker = psutil.Process(int(runner.stdout.readline()))
    runner.kill()
    runner.wait()
    _, alive = psutil.wait_procs([worker], timeout=20)
    assert not alive


def test_a_runner_that_is_ended_leaves_nothing(tmp_path):
    """Its folder for weights and caches holds gigabytes."""
    folder, output = tmp_path / "temporary", tmp_path / "results.jsonl"
    folder.mkdir()
    runner = subprocess.Popen(
        [sys.executable, "-m", "bench", "run", "--models", "dlrm", "--output", str(output)],
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not any(folder.iterdir()):
        assert runner.poll() is None
        time.sleep(0.1)
    runner.terminate()
    assert runner.wait(20) == 128 + signal.SIGTERM
    assert not any(folder.iterdir())


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


def test_what_a_call_costs_is_timed_on_request(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    assert asked(path, "--overhead") == 0
    (record,) = Results(path).models.values()
    assert all(entry["overhead_us"] > 1 for entry in record["backends"].values())
    printed = capsys.readouterr().out
    assert "openxla tiny us" in " ".join(report.columns(Results(path)))
    assert "a call at the tiny size" in printed


def test_a_run_is_written_resumed_and_reported(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    assert asked(path) == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["settings"]["backends"] == ["eager", "openxla"]
    assert lines[0]["versions"]["torch"]
    ours = lines[1]["backends"]["openxla"]
    assert ours["status"] == "ok"
    assert (ours["graphs"], ours["executables"], ours["fallbacks"]) == (1, 1, 0)
    assert 0 < ours["error"] < 1e-5
    assert ours["peak_mb"] > 100
    assert ours["cold_s"] > ours["ms"][0] / 1e3
    moved = json.dumps({**lines[0], "machine": "a machine of before"})
    cut = '{"model": "cut sho'  # as a crash leaves it
    path.write_text("\n".join([moved, json.dumps(lines[1]), cut]))
    assert asked(path, models="super_resolution,dlrm") == 0
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


def record(model, **milliseconds):
    rows = {b: {"status": "ok", "ms": [ms] * 3, "peak_mb": 1.0} for b, ms in milliseconds.items()}
    return {"model": model, "backends": rows}


def test_figures(tmp_path):
    one = record("one", eager=4.0, inductor=2.0, openxla=1.0)
    assert speedup(one, "openxla", ["eager", "inductor"]) == 2
    assert speedup(one, "openxla", ["torchax"]) is None
    one["backends"]["inductor"]["status"] = "timeout"
    assert latency(one, "inductor") is None
    assert speedup(one, "openxla", ["eager", "inductor"]) == 4
    assert geometric_mean([2, None, 8]) == pytest.approx(4)
    assert math.isnan(geometric_mean([None]))


def test_speedups_are_over_the_inductor_that_ran(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    results.append(record("one", eager=4.0, openxla=2.0))
    assert [what for what, *_ in report.means(results)][:2] == [
        "speedup over eager",
        "peak memory / eager's",
    ]
    results.append(record("one", **{"eager": 4.0, "inductor-max": 3.0, "openxla": 2.0}))
    assert report.means(results)[0] == (
        "speedup over the better of eager and inductor-max",
        pytest.approx(1.5),
        1,
    )
    results.append(
        record("one", **{"eager": 4.0, "inductor": 3.5, "inductor-max": 3.0, "openxla": 2.0})
    )
    assert report.means(results)[0] == (
        "speedup over the better of eager and inductor",
        pytest.approx(1.75),
        1,
    )


def test_comparison(tmp_path):
    before, after = Results(tmp_path / "before.jsonl"), Results(tmp_path / "after.jsonl")
    before.append(record("one", eager=4.0, openxla=2.0))
    before.append(record("two", eager=4.0, openxla=2.0))
    after.append(record("one", eager=8.0, openxla=2.0))  # a slower machine, and twice as fast
    after.append(record("two", eager=4.0, openxla=2.0))
    after.models["two"]["backends"]["openxla"]["status"] = "wrong"
    console = Console(record=True, width=120)
    compare(before, after, console)
    text = console.export_text()
    assert "2.00" in text
    assert "wrong" in text
    assert "geometric mean 2.000" in text


def test_a_line_without_an_end_is_measured_again(tmp_path):
    """The run was killed while it wrote it."""
    path = tmp_path / "results.jsonl"
    path.write_text('{"model": "one", "backends": {}}\n{"model": "two", "backends": {}}')
    results = Results(path)
    assert list(results.models) == ["one"]
    results.append({"model": "three", "backends": {}})
    assert list(Results(path).models) == ["one", "three"]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "5",
        '{"foo": 1}',
        '{"run": "python -m bench run"}',
        '{"model": "one"}',
        '{"model": ["one"], "backends": {}}',
        '{"model": "one", "backends": {"eager": 5}}',
        '{"model": "one", "backends": {"eager": {"status": "ok", "ms": [1.0, NaN]}}}',
        '{"model": "one", "backends": {"eager": {"status": "ok", "ms": 1.0}}}',
    ],
)
def test_lines_that_are_none(line, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(line + '\n{"model": "one", "backends": {}}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl:1"):
        Results(path)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"model": "\xff"}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl is no file of results"):
        Results(path)


@pytest.mark.parametrize("text", ["", '{"model": "one", "backends": {}}\n'])
def test_there_is_nothing_to_report(text, tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    for arguments in (["report", str(path)], ["compare", str(path), str(path)]):
        with pytest.raises(SystemExit):
            command_line.main(arguments)
        assert "there are no results" in capsys.readouterr().err


def test_files_of_other_models_are_not_compared(tmp_path, capsys):
    paths = [str(tmp_path / f"{model}.jsonl") for model in ("one", "two")]
    for path, model in zip(paths, ("one", "two"), strict=True):
        Results(pathlib.Path(path)).append(record(model, eager=1.0, openxla=1.0))
    with pytest.raises(SystemExit):
        command_line.main(["compare", *paths])
    assert "have no model in common" in capsys.readouterr().err


def test_the_report_tells_failures(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    results.append(record("one", eager=4.0, openxla=2.0))
    failed = {"status": "crash", "message": "<b>|\nx"}
    results.append({"model": "two", "backends": {"openxla": failed}})
    console = Console(record=True, width=200)
    report.show(results, console)
    assert "two, openxla: crash <b>" in console.export_text()
    assert "&lt;b&gt;" in report.page(results)
    assert report.markdown(results).endswith("\n| two | openxla | crash | <b>\\| x |\n")


@pytest.mark.parametrize("length", [16, 40, 250])
@pytest.mark.parametrize("batch", range(1, 17))
def test_batches_are_cut_into_sizes_that_are_compiled(batch, length):
    cut = server.pieces(batch, length)
    assert sum(cut) == batch
    filled = [next(b for b in server.BATCHES if b >= n) for n in cut]
    assert (sum(filled) - batch) * length <= server.WASTE


def test_what_bounds_a_model():
    assert bounds.covered([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4
    assert 0 < bounds.share(Task("nanogpt", size="tiny", batch=2)) < 1
    assert 0 < bounds.share(Task("nanogpt", size="tiny", batch=2, dtype="bfloat16")) < 1


def test_backends_serve_in_turns(capsys):
    asked = ["serve", "--size", "tiny", "--backends", "eager", "--seconds", "0.4", "--turns", "2"]
    assert command_line.main(asked) == 0
    rows = [line.strip("│").split("│") for line in capsys.readouterr().out.splitlines()]
    figures = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
    assert float(figures["requests/s"]) > 0
    assert 0 < float(figures["p50 ms"]) <= float(figures["p99 ms"])


def test_a_server_that_fails_is_told(capsys):
    asked = ["serve", "--size", "tiny", "--backends", "eager", "--memory-limit", "0.05"]
    assert command_line.main(asked) == 1
    assert "eager: memory: more than 0.05 GB in prepare" in capsys.readouterr().out


def test_clients_tell_what_the_server_raised():
    loop = server.Loop("eager", "tiny", 2, torch.get_num_threads(), pads=False)
    loop.server.model = None
    with pytest.raises(TypeError, match="not callable"):
        loop.take_turn(0, 0.1)
    assert serve.centile([3.0, 1.0, 2.0], 50) == 2.0
    assert serve.centile([3.0, 1.0, 2.0], 99) == 3.0
