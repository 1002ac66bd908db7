"""Names of `torch_xla.debug.profiler`, over JAX's profiler, which is XLA's (XProf)."""

import contextlib
import functools
import os
import pathlib
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import torch

import xla_dynamo
from xla_dynamo.errors import XlaDynamoError
from xla_dynamo.lazy.steps import set_tracer_marked_step
from xla_dynamo.runtime import traces
from xla_dynamo.torch_private import is_tracing_here

_F = TypeVar("_F", bound=Callable[..., Any])


class ProfilerServer:
    """A server that XProf asks for profiles of this process; it ends when this is collected.

    Attributes:
        port: where it listens.
    """

    def __init__(self, port: int) -> None:
        """Start it.

        Raises:
            RuntimeError: the port is taken, or this process has a server.
        """
        try:
            jax.profiler.start_server(port)
        except (ValueError, RuntimeError) as error:
            raise RuntimeError(f"no profiler server at port {port}: {error}") from error
        self.port = port
        weakref.finalize(self, jax.profiler.stop_server)
        _servers.add(self)


_servers: "weakref.WeakSet[ProfilerServer]" = weakref.WeakSet()  # a process has one


def start_server(port: int, only_on_master: bool = True) -> ProfilerServer | None:
    """Listen on a port for XProf and for `trace`, which may run in this process, too.

    Args:
        port: the port.
        only_on_master: whether only the first process of each host does.

    Returns:
        The server, which lives as long as it is held; None in other processes.

    Raises:
        RuntimeError: the port is taken, or this process has a server.
    """
    if only_on_master and not xla_dynamo.is_master_ordinal():
        return None
    return ProfilerServer(port)


def trace(
    service_addr: str,
    logdir: str | os.PathLike[str],
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Profile the processes of servers, and write what XProf and TensorBoard show; waits for it.

    The server of this process needs nothing else; others are asked by the package xprof.

    Args:
        service_addr: where the servers listen, as "localhost:9012", with commas between.
        logdir: the folder.
        duration_ms: how long.
        num_tracing_attempts: how often to try where another profile is being made.
        host_tracer_level: what is told of the CPU: 1, 2 or 3 for more.
        device_tracer_level: whether devices tell anything, 1 or 0. They do in this process.
        delay_ms: how long to wait before.
        timeout_s: how long to try.
        interval_s: how long to wait between.

    Raises:
        XlaDynamoError: a server is of another process, and xprof is not installed.
        StorageError: nothing can be written into the folder.
        RuntimeError: other profiles were made all the time.
    """
    addresses = [a.strip().removeprefix("grpc://") for a in service_addr.split(",")]
    if not all(map(_is_here, addresses)):
        options = {
            "host_tracer_level": host_tracer_level,
            "device_tracer_level": device_tracer_level,
            "delay_ms": delay_ms,
        }
        trace_others = _client()
        trace_others(
            ",".join(addresses), str(logdir), "", True, duration_ms, num_tracing_attempts, options
        )
        return
    time.sleep(delay_ms / 1000)
    options_here = jax.profiler.ProfileOptions()
    options_here.host_tracer_level = host_tracer_level
    folder = pathlib.Path(logdir)
    traces.make_folder(folder)
    end = time.monotonic() + timeout_s
    for left in reversed(range(num_tracing_attempts)):
        try:
            traces.start_trace(folder, options_here)
            break
        except RuntimeError:  # another profile is being made
            if not left or time.monotonic() + interval_s > end:
                raise
            time.sleep(interval_s)
    try:
        time.sleep(duration_ms / 1000)
    finally:
        traces.stop_trace()


def _is_here(address: str) -> bool:
    """Whether a server of this process listens at an address."""
    host, _, port = address.rpartition(":")
    own = {"localhost", "127.0.0.1", "[::1]", "0.0.0.0", socket.gethostname()}
    return host in own and any(str(server.port) == port for server in _servers)


def _client() -> Callable[..., Any]:
    try:
        from xprof.convert import _pywrap_profiler_plugin  # type: ignore[import-not-found]
    except ImportError as error:
        raise XlaDynamoError(
            "profiles of another process's server are fetched by the package xprof, which is not "
            "installed: pip install xprof, or call trace or start_trace in that process"
        ) from error
    return _pywrap_profiler_plugin.trace


def trace_detached(*args: Any, **kwargs: Any) -> None:
    """Call `trace` with these arguments in another thread."""
    threading.Thread(target=trace, args=args, kwargs=kwargs).start()


def start_trace(log_dir: str | os.PathLike[str]) -> None:
    """Begin to record what XLA executes, for XProf or TensorBoard.

    Raises:
        StorageError: nothing can be written into the folder.
        RuntimeError: another profile is being made.
    """
    traces.start_trace(pathlib.Path(log_dir))


def stop_trace() -> None:
    """End the recording, and write it.

    Raises:
        StorageError: it cannot be written.
        RuntimeError: nothing is recorded.
    """
    traces.stop_trace()


class Trace(contextlib.ContextDecorator):
    """A block that XProf and `torch.profiler` show under a name; in compiled functions nothing."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        """Take the name, and what else XProf shows beside it."""
        self._inside: contextlib.ExitStack | None = None
        self._name, self._others = name, kwargs

    def _entered(self) -> list[Any]:
        return [
            jax.profiler.TraceAnnotation(self._name, **self._others),
            torch.profiler.record_function(self._name),
        ]

    def __enter__(self) -> "Trace":
        if not is_tracing_here():
            self._inside = contextlib.ExitStack()
            for one in self._entered():
                self._inside.enter_context(one)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._inside is not None:
            self._inside.__exit__(*error)
            self._inside = None


class StepTrace(Trace):
    """A step of training, which XProf counts, and which ends with `sync()`."""

    def __init__(self, name: str, step_num: int = 0, **kwargs: Any) -> None:
        """Take the name, the number of the step, and what else XProf shows."""
        super().__init__(name, **kwargs)
        self._step = step_num

    def _entered(self) -> list[Any]:
        step = jax.profiler.StepTraceAnnotation(self._name, step_num=self._step, **self._others)
        return [step, torch.profiler.record_function(f"{self._name} {self._step}")]

    def __enter__(self) -> "StepTrace":
        set_tracer_marked_step(True)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None:
                xla_dynamo.sync()
            else:
                set_tracer_marked_step(False)
        finally:
            super().__exit__(*error)


def trace_me(scope: str) -> Callable[[_F], _F]:
    """Show each call of the decorated function under a name."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]

    return decorate
