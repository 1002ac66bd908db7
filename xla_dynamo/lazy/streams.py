"""The names of streams and events that torch asks of a device, which has one queue of programs."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from xla_dynamo.lazy.execution import compute, running


def wait() -> None:
    """Compute all that is pending, and wait for programs of other threads."""
    compute(cause="synchronize()")
    with running:
        pass


class Event:
    """A point in the order of programs."""

    def __init__(self, enable_timing: bool = False, **options: Any) -> None:
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Compute all that was recorded before this point."""
        wait()
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Let a stream go on behind this point, as it does anyway."""

    def query(self) -> bool:
        """Whether all before this point is computed: `record` has computed it."""
        return True

    def synchronize(self) -> None:
        """Wait until all before this point is computed: `record` has waited."""

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds from this event to another.

        Raises:
            RuntimeError: one of them is not recorded.
        """
        if self._time is None or end._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._time - self._time) * 1000


class Stream:
    """The device's queue: programs run in the order in which they are started."""

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device_index = 0
        self.stream_id = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return hash(Stream)

    def synchronize(self) -> None:
        """Compute all that is pending, and wait for it."""
        wait()

    def query(self) -> bool:
        """Whether nothing runs: programs run where they are called."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Go on behind another stream, which is this one."""

    def wait_event(self, event: Event) -> None:
        """Go on behind an event, as it does anyway."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, a new one unless given."""
        event = Event() if event is None else event
        event.record(self)
        return event


def current_stream(device: Any = None) -> Stream:
    """The device's one stream."""
    return Stream()


default_stream = current_stream


def set_stream(stream: Any) -> None:
    """Choose a stream: there is one."""


@contextlib.contextmanager
def stream(stream: Any) -> Iterator[None]:
    """Run a block on a stream: there is one."""
    yield
