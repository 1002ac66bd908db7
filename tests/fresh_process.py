"""Run code in a process that has imported torch and the package, and has made no client yet.

Importing takes seconds. A server does it once (multiprocessing's "forkserver"), and each process is
a fork of it, made before PJRT has started a thread. Tests of what is imported, and when, start an
interpreter of their own instead.
"""

import atexit
import dataclasses
import multiprocessing
import multiprocessing.process
import os
import pathlib
import sys
import tempfile
import textwrap
import traceback
import warnings

_IMPORTED = ["torch", "torch._dynamo", "jax", "xla_dynamo.backend", "xla_dynamo.spmd"]
# Our own tests' settings, which are not the user's.
_SETTINGS = ("CPU_NUM_DEVICES", "PJRT_DEVICE")
_STREAMS = ("stdout", "stderr")


@dataclasses.dataclass
class Finished:
    """A process that has ended: its exit status, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


def run(code: str, *, seconds: float = 300, **environment: str) -> Finished:
    """Run code as a program of its own, with our tests' environment but for one CPU device.

    Raises:
        TimeoutError: it does not end; it is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = start(code, folder, **environment)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            raise TimeoutError(f"the process did not end in {seconds} s")
        return Finished(process.exitcode, *written(folder))


def start(code: str, folder: str, **environment: str) -> multiprocessing.process.BaseProcess:
    """Begin to run code, as `run` does; what it writes goes to files of a folder."""
    kept = {k: v for k, v in os.environ.items() if k not in _SETTINGS}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    paths = [os.path.join(folder, name) for name in _STREAMS]
    arguments = (textwrap.dedent(code), {**kept, **environment}, os.getcwd(), paths)
    process = context.Process(target=_execute, args=arguments)
    process.start()
    return process


def written(folder: str) -> list[str]:
    """What a process that `start` has begun has written: to its standard output, and its errors."""
    paths = [pathlib.Path(folder, name) for name in _STREAMS]
    return [path.read_text() if path.exists() else "" for path in paths]


def run_module(name: str, *arguments: str, **environment: str) -> Finished:
    """Run a module as `python -m` would, with these arguments; see `run`."""
    code = f"""
        import runpy
        import sys

        sys.argv = ["-m", *{arguments!r}]
        runpy.run_module({name!r}, run_name="__main__", alter_sys=True)
    """
    return run(code, **environment)


def python(code: str, **environment: str) -> str:
    """Run code that must succeed, and return what it prints."""
    done = run(code, **environment)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def _execute(code: str, environment: dict[str, str], folder: str, paths: list[str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, path in enumerate(paths, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    sys.argv = ["-c"]
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()  # a child of the server would leave them out
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
