"""A line on the terminal that tells what is compiled, once that takes longer than two seconds.

It is shown where stderr is a terminal, and not in notebooks, tests and CI; XLA_DYNAMO_PROGRESS=0
switches it off. Below two seconds a compilation pays for one entry in a list.
"""

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from xla_dynamo.switches.others import TERM, UNWATCHED
from xla_dynamo.switches.ours import PROGRESS

_AFTER = 2.0
_BETWEEN = 0.25


@dataclasses.dataclass(eq=False, slots=True)
class Stage:
    """Something that takes long.

    Attributes:
        subject: what is compiled: "forward of MyModel".
        name: "lowering" or "XLA".
        start: when it began, by `time.monotonic`.
    """

    subject: str
    name: str
    start: float


class Progress:
    """The line, for all threads that compile.

    One thread of its own draws it, and ends when nothing is compiled.
    """

    def __init__(self) -> None:
        """Show nothing."""
        self.clear()

    def clear(self) -> None:
        """Forget all stages, the lock, and the thread."""
        self._lock = threading.Lock()
        self._stages: list[Stage] = []
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    @contextlib.contextmanager
    def showing(self, subject: str, name: str) -> Iterator[None]:
        """Tell of a stage while this block runs, if it runs for long."""
        if not wanted():
            yield
            return
        stage = Stage(subject, name, time.monotonic())
        with self._lock:
            self._stages.append(stage)
            if self._thread is None or not self._thread.is_alive():  # not there, or of a parent
                self._thread = _started(self._draw)
            else:
                self._changed.notify()
        try:
            yield
        finally:
            with self._lock:
                self._stages.remove(stage)
                self._changed.notify()
                is_last, thread = not self._stages, self._thread
            # So what the user prints next does not meet the line.
            if is_last and thread is not None and time.monotonic() - stage.start >= _AFTER:
                thread.join(timeout=1.0)

    def _draw(self) -> None:
        """Draw until nothing is compiled."""
        status: Any = None
        try:
            while True:
                with self._lock:
                    if not self._stages:
                        self._thread = None
                        return
                    oldest = min(self._stages, key=lambda stage: stage.start)
                    seconds = time.monotonic() - oldest.start
                    if seconds < _AFTER:
                        self._changed.wait(_AFTER - seconds)
                        continue
                    others = len(self._stages) - 1
                text = f"compiling {oldest.subject}: {oldest.name}, {seconds:.0f} s"
                text += f" (and {others} more)" if others else ""
                if status is None:
                    status = _status()
                    status.start()
                status.update(text)
                with self._lock:
                    self._changed.wait(_BETWEEN)
        except (OSError, ValueError):  # the terminal is gone
            with self._lock:
                self._thread = None
        finally:
            if status is not None:
                with contextlib.suppress(OSError, ValueError):
                    status.stop()


def wanted() -> bool:
    """Whether somebody would see the line."""
    if not PROGRESS.get():
        return False
    if TERM.get() == "dumb" or any(name.text() is not None for name in UNWATCHED):
        return False
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except (AttributeError, ValueError):  # closed, or another object
        return False


def _started(draw: Any) -> threading.Thread | None:
    thread = threading.Thread(target=draw, name="xla_dynamo progress", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter starts no thread any more
        return None
    return thread


def _status() -> Any:
    """Rich's line, which is cut to the terminal's width."""
    import rich.console
    import rich.live
    import rich.spinner

    class Status:
        def __init__(self) -> None:
            self._spinner = rich.spinner.Spinner("dots")
            # What the user prints to a terminal goes above the line; what is redirected stays so.
            self._live = rich.live.Live(
                self._spinner,
                console=rich.console.Console(stderr=True, soft_wrap=False),
                refresh_per_second=8,
                transient=True,
                redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
                redirect_stderr=True,
            )

        def start(self) -> None:
            self._live.start()

        def update(self, text: str) -> None:
            import rich.text

            self._spinner.update(text=rich.text.Text(text, no_wrap=True, overflow="ellipsis"))

        def stop(self) -> None:
            self._live.stop()

    return Status()


progress = Progress()


def _forget_in_child() -> None:
    """A forked child has no thread that draws, and maybe a lock that nobody gives back."""
    progress.clear()


os.register_at_fork(after_in_child=_forget_in_child)
