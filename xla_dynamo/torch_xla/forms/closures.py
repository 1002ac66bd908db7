"""Names of `torch_xla.utils.closures`: what calls functions, here or in another thread."""

import abc
import collections
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from xla_dynamo.switches.pytorch_xla import MAX_ASYNC_QUEUE

Closure: TypeAlias = Callable[[], Any]


class ClosureHandler(abc.ABC):
    """Calls functions; a subclass says how."""

    @abc.abstractmethod
    def run(self, closure: Closure) -> None:
        """Call a function."""

    def run_all(self, closures: Iterable[Closure]) -> None:
        """Call functions, in their order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Calls functions in a thread, one after the other.

    The process ends when all have been called. What one raises ends the calls: those that wait
    are called when `run` has raised it.
    """

    def __init__(self, max_queue_size: int = 100) -> None:
        """Take how many may wait: `run` waits for room. XLA_MAX_ASYNC_QUEUE overrides it."""
        self._most = MAX_ASYNC_QUEUE.get() or max_queue_size
        self._waiting: collections.deque[Closure] = collections.deque()
        self._changed = threading.Condition()
        self._is_running = False
        self._error: BaseException | None = None

    def start_event_loop(self) -> None:
        """Start the thread if something waits and none runs; `run` does it, too."""
        with self._changed:
            if not self._is_running and self._waiting and self._error is None:
                self._is_running = True
                threading.Thread(target=self._call_all, name="torch_xla closures").start()

    def run(self, closure: Closure) -> None:
        """Let the thread call a function.

        Raises:
            RuntimeError: an earlier one has raised, which is the cause of this error. This function
                waits, too, and the next `run` starts the calls again.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < self._most or self._error)
            self._waiting.append(closure)
            error, self._error = self._error, None
        if error is not None:
            raise RuntimeError(
                "Cannot run asynchronous closure due to previously raised exception"
            ) from error
        self.start_event_loop()

    def _call_all(self) -> None:
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_running = False
                    return
                closure = self._waiting.popleft()
                self._changed.notify_all()
            try:
                closure()
            except BaseException as error:
                with self._changed:
                    self._error, self._is_running = error, False
                    self._changed.notify_all()
                return
