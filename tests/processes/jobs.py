"""Jobs of several processes for tests: each runs a function, and hands over what it returned.

`python -m tests.processes.jobs FOLDER PROCESSES MODULE FUNCTION` is one.
"""

import dataclasses
import importlib
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile
import time

from tests import fresh_process

ROOT = pathlib.Path(__file__).parent.parent.parent
SECONDS = 480


@dataclasses.dataclass
class Ended:
    """A job that has ended.

    Attributes:
        results: what the function returned, by rank; None where it did not return.
        status: the exit status of the launcher.
        output: what all have written.
    """

    results: list
    status: int
    output: str


def run_job(function, processes, devices=1, launcher=(), **environment):
    """Run a function of no arguments in so many processes, each of so many virtual devices."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*(launcher or (sys.executable,)), "-m", "tests.processes.jobs", folder]
        command += [str(processes), function.__module__, function.__name__]
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env={
                **os.environ,
                "CPU_NUM_DEVICES": str(devices),
                "XLA_DYNAMO_CACHE_DIR": folder,
                "PYTHONWARNINGS": "ignore",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        results = _results(folder, processes)
    return Ended(results, ended.returncode, ended.stdout + ended.stderr)


def results_of(function, processes, devices=1, **environment):
    """What a function returned in each of so many processes, all of which must end well.

    They are forks of one that has imported everything, so they cost little more than what they do.
    Nor does LLVM optimize what they compile: it would take longer than that runs.
    """
    module, name = function.__module__, function.__name__
    with tempfile.TemporaryDirectory() as folder:
        code = f"""
            import {module}
            import xla_dynamo
            from tests.processes.jobs import _run

            given = {folder!r}, {module!r}, {name!r}
            xla_dynamo.launch(_run, given, {processes}, start_method="fork")
        """
        settings = {
            "CPU_NUM_DEVICES": str(devices),
            "XLA_DYNAMO_CACHE_DIR": folder,
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            **environment,
        }
        ended = fresh_process.run(code, seconds=SECONDS, **settings)
        assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
        return _results(folder, processes)


def run_apart(function, processes, **environment):
    """Run a function in processes that nobody watches over: none is ended when another fails.

    They are forks, as those of `results_of`. Returns what it returned in each, None where it did
    not, and what all have written.
    """
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
        probe.close()
        size = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        shared = {**place, **size, "XLA_DYNAMO_CACHE_DIR": folder, **environment}
        code = f"""
            import xla_dynamo
            from tests.processes.jobs import _run

            given = {folder!r}, {function.__module__!r}, {function.__name__!r}
            xla_dynamo.launch(_run, given)
        """
        places = [pathlib.Path(folder, f"written-{rank}") for rank in range(processes)]
        started = []
        try:
            for rank, own in enumerate(places):
                own.mkdir()
                who = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                started.append(fresh_process.start(code, str(own), **shared, **who))
            _wait(started)
        finally:
            for process in started:
                process.kill()
                process.join()
        written = "".join(text for own in places for text in fresh_process.written(str(own)))
        return _results(folder, processes), written


def _wait(started):
    """Wait until all processes have ended or are stopped, or the time is over."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        waiting = [p for p in started if p.exitcode is None]
        if all(_is_stopped(p.pid) for p in waiting):
            return
        time.sleep(0.1)


def _is_stopped(pid):
    """Whether a process was stopped by a signal."""
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _results(folder, processes):
    files = [pathlib.Path(folder) / f"result-{rank}" for rank in range(processes)]
    return [pickle.loads(f.read_bytes()) if f.exists() else None for f in files]


def _run(index, folder, module, name):
    import xla_dynamo

    result = getattr(importlib.import_module(module), name)()
    file = pathlib.Path(folder) / f"result-{xla_dynamo.runtime.global_ordinal()}"
    file.write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    import xla_dynamo

    place, count, *what = sys.argv[1:]
    given = None if "RANK" in os.environ else int(count)
    xla_dynamo.launch(_run, (place, *what), nprocs=given)
