"""A forked child has PJRT's memory but none of its threads: whatever waits for them never ends."""

import ctypes
import os
from typing import Any

forked = False
_clients: list[Any] = []

MESSAGE = (
    "this process was forked from one that had used XLA, whose threads a fork does not copy: a "
    "compiled call would never return. Start worker processes with the 'spawn' or 'forkserver' "
    "method, or use compiled functions only in the parent"
)


def _in_child() -> None:
    global forked
    forked = True
    for client in _clients:  # which waits for its threads when it goes, at the end of the process
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


def watch(client: Any) -> None:
    """From now on, remember a fork in the child, and keep this client of PJRT there."""
    if not _clients and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
    _clients.append(client)
