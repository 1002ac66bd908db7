"""What a call does while its executable is compiled in the background."""

import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from xla_dynamo.calls.calls import Call
from xla_dynamo.graphs.request import Request
from xla_dynamo.graphs.source_graph import SourceGraph
from xla_dynamo.variants.eager_graph import eager_call
from xla_dynamo.variants.executable_cache import ExecutableCache
from xla_dynamo.variants.result_placeholders import placeholder_call

Future: TypeAlias = "concurrent.futures.Future[Any]"
T = TypeVar("T")


class _Ahead(threading.local):
    """What the calls of a thread that only begin to compile have begun, and need not make."""

    begun: list[Future] | None = None
    only_looks = False
    unread = 0


_ahead = _Ahead()


@contextlib.contextmanager
def compiling_ahead(*, only_looks: bool = False) -> Iterator[list[Future]]:
    """In this block, calls in this thread begin to compile in the background, and compute nothing.

    They return zeros of the right sizes. The list gets what has been begun. With `only_looks` the
    calls do not even begin to compile: graphs are traced, and see which of their sizes change.
    """
    before, before_looks = _ahead.begun, _ahead.only_looks
    begun: list[Future] = []
    _ahead.begun, _ahead.only_looks = begun, only_looks
    try:
        yield begun
    finally:
        _ahead.begun, _ahead.only_looks = before, before_looks


def is_ahead() -> bool:
    """Whether calls in this thread only begin to compile."""
    return _ahead.begun is not None


@contextlib.contextmanager
def nobody_reads_the_last(results: int) -> Iterator[None]:
    """Calls in this thread that only begin to compile need not make so many of their results."""
    before, _ahead.unread = _ahead.unread, results
    try:
        yield
    finally:
        _ahead.unread = before


def only_looks() -> bool:
    """Whether calls in this thread only show which sizes are to come."""
    return _ahead.only_looks


class Meanwhile:
    """The call of a graph that runs while an executable is compiled in the background."""

    def __init__(self, source: SourceGraph, request: Request) -> None:
        """Take a graph."""
        self._source, self._request = source, request
        self._is_eager = request.options.while_compiling == "eager"

    @functools.cached_property
    def _eager(self) -> Call | None:
        return eager_call(self._source.gm, self._request, self._source.facts.device)

    @functools.cached_property
    def _placeholders(self) -> Call | None:
        # Where torch has no memory to run a graph in, it has none for placeholders either.
        if self._eager is None:
            return None
        return placeholder_call(self._source.gm, lambda: _ahead.unread)

    def ahead(self) -> Call | None:
        """The call that computes nothing, if calls in this thread only begin to compile."""
        return self._placeholders if is_ahead() else None

    def call(self) -> Call | None:
        """The call that stands in; None where the caller waits for the executable."""
        return self.ahead() or (self._eager if self._is_eager else None)

    def start(self, cache: ExecutableCache[T], key: Any, make: Callable[[], T]) -> None:
        """Begin to compile in the background; `compiling_ahead` gets the future.

        Raises:
            Exception: compiling it in the background failed before, and nobody was told yet.
        """
        begun = _ahead.begun
        if _ahead.only_looks:
            return
        future = cache.start(key, make, keeps_failure=begun is None)
        if begun is not None:
            begun.append(future)
