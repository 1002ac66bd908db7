"""A forked child has PJRT's memory but none of its threads: whatever waits for them never ends."""

import os

forked = False

MESSAGE = (
    "this process was forked from one that had used XLA, whose threads a fork does not copy: a "
    "compiled call would never return. Start worker processes with the 'spawn' or 'forkserver' "
    "method, or use compiled functions only in the parent"
)


def _in_child() -> None:
    global forked
    forked = True


def watch() -> None:
    """From now on, remember a fork in the child. Called once, when the first client is made."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_child)
