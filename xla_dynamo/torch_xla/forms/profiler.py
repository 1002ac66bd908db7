"""Names of `torch_xla.debug.profiler`, over JAX's profiler, which is XLA's (XProf)."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import torch

_F = TypeVar("_F", bound=Callable[..., Any])


def start_server(port: int, only_on_master: bool = True) -> Any:
    """Listen on a port for XProf; returns the server, which lives as long as it is held."""
    return jax.profiler.start_server(port)


def start_trace(logdir: str) -> None:
    """Begin to record what XLA executes, for XProf or TensorBoard."""
    jax.profiler.start_trace(logdir)


def stop_trace() -> None:
    """End the recording, and write it."""
    jax.profiler.stop_trace()


class Trace(contextlib.ContextDecorator):
    """A block that XProf and `torch.profiler` show under a name."""

    def __init__(self, name: str, **kwargs: Any) -> None:
        """Take the name, and what else XProf shows beside it."""
        self._inside = contextlib.ExitStack()
        self._name, self._others = name, kwargs

    def _entered(self) -> list[Any]:
        return [
            jax.profiler.TraceAnnotation(self._name, **self._others),
            torch.profiler.record_function(self._name),
        ]

    def __enter__(self) -> "Trace":
        for one in self._entered():
            self._inside.enter_context(one)
        return self

    def __exit__(self, *error: Any) -> None:
        self._inside.__exit__(*error)


class StepTrace(Trace):
    """A step of training, which XProf counts."""

    def __init__(self, name: str, step_num: int = 0, **kwargs: Any) -> None:
        """Take the name, the number of the step, and what else XProf shows."""
        super().__init__(name, **kwargs)
        self._step = step_num

    def _entered(self) -> list[Any]:
        step = jax.profiler.StepTraceAnnotation(self._name, step_num=self._step, **self._others)
        return [step, torch.profiler.record_function(f"{self._name} {self._step}")]


def trace_me(scope: str) -> Callable[[_F], _F]:
    """Show each call of the decorated function under a name."""

    def decorate(function: _F) -> _F:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]

    return decorate
