"""Defer the handlers of signals that arrive while a program calls Python functions.

Python runs the handlers of signals in the main thread, between any two instructions. So a handler
could run inside a Python function that XLA calls (`foreign_calls`): a KeyboardInterrupt raised
there would be lost, and the call would stay unfinished. Programs could run in another thread, which
no handler interrupts, but glibc gives such a thread a heap that it cannot keep (`host_memory`).
"""

import _signal
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NUMBERS = [int(number) for number in signal.valid_signals()]


def after_signals(execute: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; in the main thread, handlers in Python run only after it has returned.

    Handlers wait in the same way for any function that is not written in Python.
    """

    def in_peace(*args: Any) -> Any:
        if threading.get_ident() != threading.main_thread().ident:
            return execute(*args)
        came: dict[int, Any] = {}
        handlers = _handlers()
        try:
            for number in handlers:
                signal.signal(number, came.setdefault)
            return execute(*args)
        finally:
            try:
                _restore(handlers)
            finally:
                _run([(handlers[number], number, frame) for number, frame in came.items()])

    return in_peace


def _handlers() -> dict[int, Callable[..., Any]]:
    """The handlers in Python. `signal.getsignal` is 100 times slower: it looks up an enum."""
    every = ((number, _signal.getsignal(number)) for number in _NUMBERS)
    return {number: handler for number, handler in every if callable(handler)}


def _restore(handlers: Mapping[int, Callable[..., Any]]) -> None:
    """Set handlers, all of them also where one that is set already runs, and raises."""
    try:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    except BaseException:
        _restore(handlers)
        raise


def _run(calls: Sequence[tuple[Callable[..., Any], int, Any]]) -> None:
    """Call handlers, the others too where one raises.

    Not by the signal once more: an event loop has seen it already.
    """
    if calls:
        (handler, number, frame), *others = calls
        try:
            handler(number, frame)
        finally:
            _run(others)
