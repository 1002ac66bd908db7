"""A worker process as an object: asked by method, bounded in time and memory, killed whole."""

import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import psutil

ROOT = pathlib.Path(__file__).resolve().parent.parent


class WorkerFailed(Exception):
    """A worker could not do what it was asked.

    Attributes:
        status: "error" (an exception), "timeout", "memory" or "crash".
    """

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


def environment_of(threads: int, caches: str | pathlib.Path) -> dict[str, str]:
    """The variables of a worker that is to be timed, with an empty folder for Inductor's cache."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(caches),  # a warm one would hide its time
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
    }


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends, also while it is stopped (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def answer_requests(prepare: Callable[..., Any]) -> None:
    """Be a worker: do as the standard input tells, line by line, until there are no more.

    Requests and replies are JSON objects of a line; replies go to the pipe whose number is the
    first argument of the process, since standard output belongs to the libraries.

    Args:
        prepare: makes what the later requests ask, each by the name of a method.
    """
    end_with_parent()
    warnings.simplefilter("ignore")
    subject: Any = None
    with os.fdopen(int(sys.argv[1]), "w") as replies:
        for request in map(json.loads, sys.stdin):
            what = request.pop("do")
            reply: dict[str, Any] = {}
            try:
                if what == "prepare":
                    subject = prepare(**request)
                else:
                    reply = getattr(subject, what)(**request)
            except Exception as error:
                traceback.print_exc()
                reply = {"raised": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=replies, flush=True)


class Worker:
    """A process that answers requests, and all that it starts (Inductor's compilers).

    It is stopped (SIGSTOP) while it is asked nothing, so that what it still does takes no core from
    whoever is measured next.
    """

    def __init__(
        self,
        *,
        environment: dict[str, str],
        python: str = sys.executable,
        memory_gb: float,
        module: str = "bench.worker",
    ) -> None:
        """Start it.

        Args:
            environment: variables beside this process's own.
            python: the interpreter, of another environment for backends that need one.
            memory_gb: the process and its children are killed when they hold more than this.
            module: what it runs, which calls `answer_requests`.
        """
        self._limit = memory_gb * 1e9
        self._over = False
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the worker)
        read, write = os.pipe()
        self._replies = os.fdopen(read, "rb", buffering=0)
        self._process = subprocess.Popen(
            [python, "-m", module, str(write)],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )
        os.close(write)
        threading.Thread(target=self._watch, daemon=True).start()

    def ask(self, what: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        """Have something done, and wait for the reply.

        Raises:
            WorkerFailed: it raised, died, took longer than `timeout` seconds or too much memory.
        """
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
            self._process.stdin.flush()
        line = self._read_line(time.monotonic() + timeout)
        if line is None:
            self.close()
            raise WorkerFailed("timeout", f"{what} took longer than {timeout:g} s")
        if not line.endswith(b"\n"):
            self.close()
            if self._over:
                raise WorkerFailed("memory", f"more than {self._limit / 1e9:g} GB in {what}")
            raise WorkerFailed("crash", f"died in {what}: {self._last_words()}")
        self._process.send_signal(signal.SIGSTOP)
        reply = json.loads(line)
        if "raised" in reply:
            raise WorkerFailed("error", reply["raised"])
        return reply

    def _read_line(self, deadline: float) -> bytes | None:
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                return None
            part = self._replies.read(65536)
            if not part:
                break
            line += part
        return line

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-500:] or f"exit status {self._process.poll()}"

    def _watch(self) -> None:
        while self._process.poll() is None:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self._process.pid)
                family = [process, *process.children(recursive=True)]
                if sum(p.memory_info().rss for p in family) > self._limit:
                    self._over = True
                    self._kill()
            time.sleep(0.2)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it, with all that it started."""
        self._kill()
        self._process.wait()
        self._replies.close()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # nobody reads it any more
            self._process.stdin.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self._log.close()


@contextlib.contextmanager
def failing(
    name: str, workers: dict[str, Worker], failures: dict[str, WorkerFailed]
) -> Iterator[None]:
    """Who fails inside is out of the workers, and among the failures; the others go on."""
    try:
        yield
    except WorkerFailed as failure:
        failures[name] = failure
        if (worker := workers.pop(name, None)) is not None:
            worker.close()
