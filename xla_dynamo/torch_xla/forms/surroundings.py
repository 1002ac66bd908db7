"""Names of `torch_xla.utils.utils` for what is around a program: environment, ports, time."""

import concurrent.futures
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from xla_dynamo.switches.pytorch_xla import DEBUG

_NO = ("", "0", "false", "no")


def getenv_as(name: str, type: Callable[[str], Any], defval: Any = None) -> Any:
    """A variable of the environment as a type has it; "0", "false" and "no" are no for `bool`."""
    text = os.environ.get(name)
    if text is None:
        return defval
    return text.lower() not in _NO if type is bool else type(text)


def check_env_flag(name: str, default: str = "") -> bool:
    """Whether a variable of the environment is "true", or a number above 0."""
    flag = os.getenv(name, default)
    return flag == "true" or (flag.isdigit() and int(flag) > 0)


def null_print(*args: Any, **kwargs: Any) -> None:
    """Print nothing: in the place of a function that prints."""


def eprint(*args: Any, **kwargs: Any) -> None:
    """Print to standard error."""
    print(*args, file=sys.stderr, **kwargs)


def get_print_fn(debug: int | bool | None = None) -> Callable[..., None]:
    """A function that prints to standard error, or one that prints nothing.

    Args:
        debug: which of them; None for what the variable DEBUG of the environment says.
    """
    wanted = DEBUG.get() if debug is None else debug
    return eprint if wanted else null_print


def timed(fn: Callable[[], Any], msg: str = "", printfn: Callable[..., Any] | None = eprint) -> Any:
    """The result of a function, whose time is told in milliseconds.

    Args:
        fn: the function.
        msg: what is told before the time.
        printfn: what tells it; None for `get_print_fn()`.
    """
    with TimedScope(msg, printfn):
        return fn()


class TimedScope:
    """A block whose time is told in milliseconds, unless `set_error` was called in it."""

    def __init__(self, msg: str = "", printfn: Callable[..., Any] | None = eprint) -> None:
        """Take what is told before the time, and what tells it; None for `get_print_fn()`."""
        self._message, self._print = msg, get_print_fn() if printfn is None else printfn
        self._error: Any = None

    def __enter__(self) -> "TimedScope":
        self._start = time.perf_counter()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._error is None and error is None:
            took = 1000 * (time.perf_counter() - self._start)
            self._print(f"{self._message}{took:.3f}ms")

    def set_error(self, error: Any) -> None:
        """Note that the block failed, so that its time is not told; None forgets that."""
        self._error = error


def get_free_tcp_ports(n: int = 1) -> list[int]:
    """Ports of this machine, all different, that nobody listens on now."""
    with contextlib.ExitStack() as open_ones:
        found = [open_ones.enter_context(socket.socket()) for _ in range(n)]
        for one in found:
            one.bind(("", 0))
        return [one.getsockname()[1] for one in found]


def parallel_work(num_workers: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    """The results of a function, in their order, that threads call.

    Args:
        num_workers: how many threads.
        fn: the function.
        *args: for each of its arguments, the values of all calls, as for `map`.

    Raises:
        Exception: what the first failing call raises.
    """
    with concurrent.futures.ThreadPoolExecutor(num_workers) as threads:
        return list(threads.map(fn, *args))
