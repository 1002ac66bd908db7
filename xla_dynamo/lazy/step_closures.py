"""Call functions when a step is over, so that they may print values: step closures."""

import atexit
import collections
import concurrent.futures
import threading
from collections.abc import Callable, Sequence
from typing import Any

from xla_dynamo.lazy import execution
from xla_dynamo.process_state import kept


class _Closures:
    def __init__(self) -> None:
        self.waiting: collections.deque[tuple[Callable[..., Any], Sequence[Any], bool]]
        self.waiting = collections.deque()
        self.running: collections.deque[concurrent.futures.Future[Any]] = collections.deque()


_closures = kept(_Closures)
_thread: concurrent.futures.ThreadPoolExecutor | None = None


def add_step_closure(
    closure: Callable[..., Any], args: Sequence[Any] = (), run_async: bool = False
) -> None:
    """Call a function when the present step is over, so that it may print values.

    Args:
        closure: the function.
        args: what it is called with.
        run_async: whether another thread calls it, after earlier ones of that kind; what it raises
            is raised at the end of a later step or by `wait_device_ops`, or told when the process
            ends.
    """
    _closures.waiting.append((closure, args, run_async))


def run_closures() -> None:
    """Run what waits; what one raises does not keep the others from being run."""
    global _thread
    errors = _errors_of(wait=False)
    for _ in range(len(_closures.waiting)):
        closure, args, run_async = _closures.waiting.popleft()
        if run_async:
            if _thread is None:
                _thread = concurrent.futures.ThreadPoolExecutor(1, "xla_dynamo closures")
            _closures.running.append(_thread.submit(closure, *args))
            continue
        try:
            closure(*args)
        except Exception as error:
            errors.append(error)
    _raise_first(errors)


def _errors_of(*, wait: bool) -> list[BaseException]:
    """What the closures of the other thread have raised; those that still run stay listed."""
    errors = []
    for _ in range(len(_closures.running)):
        future = _closures.running.popleft()
        if not wait and not future.done():
            _closures.running.append(future)
        elif (error := future.exception()) is not None:
            errors.append(error)
    return errors


def _raise_first(errors: list[BaseException]) -> None:
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"another closure of the step raised {other!r}")
        raise errors[0]


def wait_device_ops(devices: Sequence[Any] = ()) -> None:
    """Wait until the programs that were started on the device are over, and their closures.

    Args:
        devices: as in PyTorch/XLA; there is one.
    """
    with execution.running:
        pass
    own = threading.current_thread().name.startswith("xla_dynamo closures")
    if not own:  # a closure cannot wait for itself
        _raise_first(_errors_of(wait=True))


def _at_exit() -> None:
    """Tell what the closures of the last step raised: Python prints what this raises.

    Python has waited for the other thread by now.
    """
    _raise_first(_errors_of(wait=True))


atexit.register(_at_exit)
