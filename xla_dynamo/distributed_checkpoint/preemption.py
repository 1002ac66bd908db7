"""Notice that the process is about to be shut down: SIGTERM has arrived."""

import signal
import threading
from typing import Any

from xla_dynamo.errors import CheckpointError

_noticed = threading.Event()
_before: Any = None
_watching = False


def watch() -> None:
    """Note the first SIGTERM from now on, in the place of what it would do.

    A second one does what it did before, so that the process can still be ended.

    Raises:
        CheckpointError: this is not the main thread, where alone Python sets handlers.
    """
    global _before, _watching
    if _watching:
        return
    if threading.current_thread() is not threading.main_thread():
        raise CheckpointError(
            "only the main thread can notice SIGTERM: make the CheckpointManager there, or with "
            "chkpt_on_preemption=False"
        )
    _before = signal.signal(signal.SIGTERM, _notice)
    _watching = True


def unwatch() -> None:
    """Let SIGTERM do again what it did, and forget that it has arrived."""
    _stop()
    _noticed.clear()


def noticed() -> bool:
    """Whether SIGTERM has arrived."""
    return _noticed.is_set()


def _notice(number: int, frame: Any) -> None:
    _noticed.set()
    _stop()


def _stop() -> None:
    global _watching
    if _watching and signal.getsignal(signal.SIGTERM) is _notice:
        # None: the handler was not set from Python, which cannot set it again.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if _before is None else _before)
    _watching = False
