"""Calls of C functions from inside a program, with no Python in the way.

A custom call of `TARGET` runs a script: the calls of some functions that return 0, one after
another. `machine_code` runs it. A script is an array of 64-bit numbers:

    the number of calls; then for each the address of the function, the number of its arguments,
    and three numbers for each of them: its place, a kind and a value

The custom call's first operand is an array of addresses of scripts, and its one attribute is the
number of the script among them. So programs hold no address, and their executables may be saved.

While a script runs there are 24 slots of 64 bits. The first hold the addresses of the custom call's
operands and then of its results. From `FIRST_MADE` on they hold what the calls make, which a
failure deletes. Between them is room for arguments that lie in memory.
"""

import ctypes
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from xla_dynamo.runtime.cpu import foreign_calls, machine_code

TARGET = "xla_dynamo.script"
FIRST_FREE, FIRST_MADE = 8, 20
# What is added to a value: the address of the slots; and whether the word at the sum is meant.
_IN_SLOTS, _LOADED = 1, 2
_MOST_ARGUMENTS = 24


class Argument(NamedTuple):
    """An argument of a C function: a number, or a word or an address that is known at the call."""

    kind: int
    value: int


NULL = Argument(0, 0)
_NOTHING: Mapping[int, Argument] = MappingProxyType({})


def number(value: int) -> Argument:
    """A number, or an address."""
    return Argument(0, value)


def slot(index: int) -> Argument:
    """What a slot holds."""
    return Argument(_IN_SLOTS | _LOADED, 8 * index)


def place_of_slot(index: int) -> Argument:
    """The address of a slot."""
    return Argument(_IN_SLOTS, 8 * index)


class Script:
    """The calls of a script, as they are added."""

    def __init__(self) -> None:
        """Begin without any."""
        self._words: list[int] = [0]

    def call(
        self, function: Any, *arguments: Argument, stored: Mapping[int, Argument] = _NOTHING
    ) -> None:
        """Call a C function; what is `stored` by slots is there before the call.

        The arguments are what the slots held before.

        Raises:
            ValueError: there are more arguments than the handler has room for.
        """
        if len(arguments) > _MOST_ARGUMENTS:
            raise ValueError(f"a C function has more than {_MOST_ARGUMENTS} arguments")
        placed = [
            (machine_code.REGISTERS + 8 * i if i < 6 else machine_code.STACKED + 8 * (i - 6), a)
            for i, a in enumerate(arguments)
        ]
        placed += [(machine_code.SLOTS + 8 * index, a) for index, a in stored.items()]
        self._words[0] += 1
        self._words += [_address(function), len(placed)]
        _names[_address(function)] = function.__name__
        for place, (kind, value) in placed:
            self._words += [place, kind, value]

    def memory(self) -> ctypes.Array:
        """The script in memory of its own."""
        return (ctypes.c_int64 * len(self._words))(*self._words)


def register(delete: Callable[[int], Any]) -> bool:
    """Register the handler, unless this process cannot run scripts; returns whether it can.

    `delete` deletes what a call has made, where a later one fails.
    """
    _deleting[:] = [delete]
    return _is_registered()


@functools.cache
def _is_registered() -> bool:
    if not (machine_code.can_run() and foreign_calls.can_call()):
        return False
    addresses = {"FAIL": _address(_fail), "OTHER": foreign_calls.handler_address()}
    try:
        address = machine_code.load(addresses)
    except OSError:
        return False
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(address), platform="cpu")
    return True


_deleting: list[Any] = []
_names: dict[int, str] = {}


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def _fail(frame: int, slots: int, function: int) -> int | None:
    """The error of a call of a function that has failed."""
    (delete,) = _deleting
    made = (ctypes.c_void_p * machine_code.NUMBER_OF_SLOTS).from_address(slots)
    for one in range(FIRST_MADE, machine_code.NUMBER_OF_SLOTS):
        if handle := made[one]:
            delete(handle)
    return foreign_calls.make_error(frame, f"{_names[function]} failed: is the memory full?")
