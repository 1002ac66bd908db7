"""Begin and end a trace of JAX's profiler, of which a process has one at a time."""

import pathlib
import tempfile
from typing import Any

import jax

from xla_dynamo.errors import StorageError
from xla_dynamo.runtime.jaxlib_private import forget_trace


def make_folder(folder: pathlib.Path) -> None:
    """Make a folder, if it is not there, in which files can be written.

    Raises:
        StorageError: there is none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StorageError(f"no trace can be written into {folder}: {error}") from error


def start_trace(folder: pathlib.Path, options: Any = None) -> None:
    """Begin a trace, which `stop_trace` writes into a folder.

    JAX finds out at the end that it cannot write, and takes the trace for running ever after; so
    the folder is tried now.

    Raises:
        StorageError: nothing can be written into the folder.
        RuntimeError: a trace runs already.
    """
    make_folder(folder)
    jax.profiler.start_trace(folder, profiler_options=options)


def stop_trace() -> None:
    """End the trace, and write it.

    Raises:
        StorageError: it cannot be written.
        RuntimeError: no trace runs.
    """
    try:
        jax.profiler.stop_trace()
    except jax.errors.JaxRuntimeError as error:
        forget_trace()
        raise StorageError(f"the trace cannot be written: {error}") from error
