"""The benchmark's worker processes: failures are told, and none outlives its runner."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from bench.processes import Worker, WorkerFailed
from tests.bench.impostor import impostor

pytestmark = [pytest.mark.filterwarnings("ignore")]


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
