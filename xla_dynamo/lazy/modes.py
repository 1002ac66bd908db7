"""Whether operators are recorded or run at once, and whether a value may be asked for."""

import contextlib
import threading
from collections.abc import Iterator

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.lazy.user_lines import place_of_caller
from xla_dynamo.process_state import kept


class _Modes:
    def __init__(self) -> None:
        self.is_eager = False


state = kept(_Modes)
_thread = threading.local()


def set_eager(enable: bool) -> None:
    """Let all threads run operators at once, or record them."""
    state.is_eager = enable


def runs_at_once() -> bool:
    """Whether this thread runs operators at once."""
    return state.is_eager and not is_recording()


def is_recording() -> bool:
    """Whether this thread is inside a block that is one program."""
    return bool(getattr(_thread, "depth", 0))


def is_whole() -> bool:
    """Whether this thread records what must be one program."""
    return bool(getattr(_thread, "whole", False))


@contextlib.contextmanager
def recording(*, whole: bool) -> Iterator[None]:
    """Record the operators of a block; `whole` tells that they must be one program."""
    before = getattr(_thread, "depth", 0), is_whole()
    _thread.depth, _thread.whole = before[0] + 1, whole or before[1]
    try:
        yield
    finally:
        _thread.depth, _thread.whole = before


def refuse_inside_a_full_graph() -> None:
    """Raise UnsupportedError where a value is asked for inside a full graph."""
    if is_whole():
        place = place_of_caller()
        where = f"\n{place.stack_trace().rstrip()}" if place else ""
        raise UnsupportedError(
            "the value of an 'xla' tensor is asked for inside a function that is compiled with "
            f"full_graph=True: return the tensor and read it outside{where}"
        )
