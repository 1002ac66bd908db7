"""The state that the package keeps for the whole process, which a test can replace.

A file whose later calls depend on earlier ones declares a class with its fields, and makes the one
instance by `kept`: a read is one attribute of a global. What only saves time is no state: caches by
`functools`, and tables of what was compiled. Neither is what exists once in a process (PJRT
clients, threads, handlers of signals, operators that torch knows), nor what belongs to a block of
one thread.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

T = TypeVar("T")
_kept: list[Any] = []


def kept(fields: type[T]) -> T:
    """The one instance of a class of fields, which `replaced` knows."""
    _kept.append(fields())
    return _kept[-1]


def everything() -> dict[str, Any]:
    """Every instance, by the file and the name of its class."""
    return {f"{type(one).__module__}.{type(one).__qualname__}": one for one in _kept}


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """In this block all state is as in a new process; afterwards it is as it was before.

    It is for tests: other threads see the same, and no lock keeps them from it.
    """
    before = [(one, one.__dict__) for one in _kept]
    try:
        for one, _ in before:
            one.__dict__ = type(one)().__dict__
        yield
    finally:
        for one, fields in before:
            one.__dict__ = fields
