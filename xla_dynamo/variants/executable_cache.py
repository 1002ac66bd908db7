"""The executables of a graph: each is compiled once, and a compile blocks nobody but who needs it.

Several threads may call a graph at once. The first that needs an executable compiles it, in its own
thread or in the background; others that need the same one wait for it. No lock is held meanwhile,
so calls that need another executable go on.
"""

import collections
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeGuard, TypeVar

from xla_dynamo.errors import CompileError
from xla_dynamo.runtime import forks
from xla_dynamo.variants import background

log = logging.getLogger("xla_dynamo")
T = TypeVar("T")


class Compilation(Generic[T]):
    """A compilation that has been asked for.

    Attributes:
        key: that of its executable.
        make: compiles, and returns what is kept.
        future: gets the result; it is cancelled if the thread that compiles is interrupted.
        begun: whether a thread compiles, or has compiled.
    """

    def __init__(self, key: Any, make: Callable[[], T]) -> None:
        self.key, self.make = key, make
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.begun = False


class ExecutableCache(Generic[T]):
    """Executables by key, `limit` of them at most: the least recently used one goes first."""

    def __init__(self, limit: int, expected: tuple[type[Exception], ...] = ()) -> None:
        """Begin without any.

        Args:
            limit: how many are kept.
            expected: the exceptions of a compilation that are no failure, and not reported later.
        """
        self._limit, self._expected = limit, expected
        self._lock = threading.Lock()
        self._ready: collections.OrderedDict[Any, T] = collections.OrderedDict()
        self._compiling: dict[Any, Compilation[T]] = {}
        self._failures: dict[Any, Exception] = {}
        self._dropped: set[int] = set()

    def find(self, key: Any) -> T | None:
        """The executable of a key; None if it is not there."""
        with self._lock:
            found = self._ready.get(key)
            if found is not None:
                self._ready.move_to_end(key)
        return found

    def items(self) -> list[tuple[Any, T]]:
        """All executables that are there, with their keys."""
        with self._lock:
            return list(self._ready.items())

    def was_dropped(self, key: Any) -> bool:
        """Whether there was an executable of this key, which had to go."""
        return hash(key) in self._dropped

    def compile(self, key: Any, make: Callable[[], T]) -> T:
        """The executable of a key, compiled in this thread unless another one is at it.

        Raises what compiling raised, in all threads that waited for it, and what compiling in the
        background raised before.
        """
        while True:
            compilation = self._asked(key, make)
            if self._begin(compilation):
                return self._run(compilation)
            try:
                return compilation.future.result()
            except concurrent.futures.CancelledError:
                continue  # its thread was interrupted: this one may be the next
            except Exception:
                with self._lock:  # this thread tells of it
                    self._failures.pop(key, None)
                raise

    def start(
        self, key: Any, make: Callable[[], T], *, keeps_failure: bool = True
    ) -> "concurrent.futures.Future[T]":
        """Begin to compile the executable of a key in the background, unless that has begun.

        What compiling raises is raised by the next call for the key, unless the caller keeps the
        future and tells of it.

        Raises:
            Exception: compiling it in the background failed before, and nobody was told yet.
        """
        compilation = self._asked(key, make)

        def run() -> None:
            if self._begin(compilation):
                self._run_in_background(compilation, keeps_failure)

        if compilation.make is make and not background.submit(run):
            run()
        return compilation.future

    def _asked(self, key: Any, make: Callable[[], T]) -> Compilation[T]:
        if forks.forked:  # a thread that compiles is in the parent
            raise CompileError(forks.MESSAGE)
        with self._lock:
            if (failure := self._failures.pop(key, None)) is not None:
                raise failure
            compilation = self._compiling.get(key)
            if compilation is None:
                compilation = Compilation(key, make)
                if key in self._ready:  # since the caller looked
                    compilation.begun = True
                    compilation.future.set_result(self._ready[key])
                else:
                    self._compiling[key] = compilation
        return compilation

    def _begin(self, compilation: Compilation[T]) -> bool:
        """Whether this thread is the one that compiles."""
        with self._lock:
            begun, compilation.begun = compilation.begun, True
        return not begun

    def _run(self, compilation: Compilation[T], *, keeps_failure: bool = False) -> T:
        try:
            made = compilation.make()
        except BaseException as error:
            with self._lock:
                del self._compiling[compilation.key]
                if keeps_failure and _is_failure(error, self._expected):
                    self._failures[compilation.key] = error
            if isinstance(error, Exception):
                compilation.future.set_exception(error)
            else:
                compilation.future.cancel()
            raise
        with self._lock:
            del self._compiling[compilation.key]
            self._ready[compilation.key] = made
            if len(self._ready) > self._limit:
                self._dropped.add(hash(self._ready.popitem(last=False)[0]))
        compilation.future.set_result(made)
        return made

    def _run_in_background(self, compilation: Compilation[T], keeps_failure: bool) -> None:
        try:
            self._run(compilation, keeps_failure=keeps_failure)
        except Exception as error:
            if keeps_failure and _is_failure(error, self._expected):
                log.error(
                    "compiling in the background failed, and the next call raises it: %s: %s",
                    type(error).__name__,
                    error,
                )


def _is_failure(
    error: BaseException, expected: tuple[type[Exception], ...]
) -> TypeGuard[Exception]:
    return isinstance(error, Exception) and not isinstance(error, expected)
