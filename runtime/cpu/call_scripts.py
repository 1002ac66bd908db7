"""Calls of C functions from inside a program, with no Python in the way.

A custom call of `TARGET` runs a plan: parts, which threads of XLA's pool do side by side. A part is
a script: the calls of some functions that return 0, one after another. If one returns another
number, the part's second script is run instead. `machine_code` runs both. A script is an array of
64-bit numbers:

    the number of calls; then for each the address of the function, the number of its arguments,
    and three numbers for each of them: its place, a kind and a value

The custom call's first operand is an array of addresses of plans, and its one attribute is the
number of the plan among them. So programs hold no address, and their executables may be saved.

While a script runs there are 24 slots of 64 bits. The first hold the addresses of the custom call's
operands and then of its results; the others are free.
"""

import ctypes
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from xla_dynamo.runtime.cpu import foreign_calls, machine_code

TARGET = "xla_dynamo.script"
FIRST_FREE = 8
# What is added to a value: the address of the slots; whether the word at the sum is meant; and from
# this bit on a number that is added to that.
_IN_SLOTS, _LOADED, _OFFSET = 1, 2, 8


class Argument(NamedTuple):
    """An argument of a C function: a number, or a word or an address that is known at the call."""

    kind: int
    value: int


NULL = Argument(0, 0)
_NOTHING: Mapping[int, Argument] = MappingProxyType({})


def number(value: int) -> Argument:
    """A number, or an address."""
    return Argument(0, value)


def slot(index: int, offset: int = 0) -> Argument:
    """What a slot holds, plus an offset that is not negative."""
    return Argument(_IN_SLOTS | _LOADED | offset << _OFFSET, 8 * index)


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
        """Add a call of a C function, or of one of `functions`, to the script.

        Before the call, the script writes the values of `stored` into the slots of these numbers.
        An argument that is read from a slot is read before that: it is the slot's value so far.

        Raises:
            ValueError: there are more arguments than the handler has room for.
        """
        if len(arguments) > machine_code.MOST_ARGUMENTS:
            raise ValueError(f"a call has more than {machine_code.MOST_ARGUMENTS} arguments")
        address = function if isinstance(function, int) else _named(function)
        placed = [(machine_code.ARGUMENTS + 8 * i, a) for i, a in enumerate(arguments)]
        placed += [(machine_code.SLOTS + 8 * index, a) for index, a in stored.items()]
        self._words[0] += 1
        self._words += [address, len(placed)]
        for place, (kind, value) in placed:
            self._words += [place, kind, value]

    def memory(self) -> ctypes.Array:
        """The script in memory of its own."""
        return _array(self._words)


class Plan:
    """Parts in memory, which this object holds.

    Attributes:
        address: the address of the plan.
    """

    def __init__(self, parts: Sequence[tuple[Script, Script | None]], helpers: int) -> None:
        """Take parts, each a script and one for its failure, and how many threads are to help."""
        self._held = [s.memory() for part in parts for s in part if s is not None]
        addresses = iter(map(ctypes.addressof, self._held))
        words = [next(addresses) if s is not None else 0 for part in parts for s in part]
        self._held.append(_array([len(parts), min(helpers, len(parts) - 1), *words]))
        self.address = ctypes.addressof(self._held[-1])


def _array(words: Sequence[int]) -> ctypes.Array:
    return (ctypes.c_int64 * len(words))(*words)


def register(threads: tuple[Any, Any]) -> bool:
    """Register the handler, unless this process cannot run scripts; returns whether it can.

    Args:
        threads: OpenMP's functions that tell and set how many threads a thread's loops have: a
            script has one alone.
    """
    if not (machine_code.can_run() and foreign_calls.can_call()):
        return False
    c = ctypes.CDLL(None)
    tell, change = threads
    addresses = {
        "MALLOC": _address(c.malloc),
        "FREE": _address(c.free),
        "GET_THREADS": _address(tell),
        "SET_THREADS": _address(change),
        "FAIL": _address(_fail),
        "OTHER": foreign_calls.handler_address(),
    }
    try:
        functions.update(machine_code.load(addresses))
    except OSError:
        return False
    capsule = jax.ffi.pycapsule(functions["handler"])
    jax.ffi.register_ffi_target(TARGET, capsule, platform="cpu")
    return True


# The addresses of `forget`, `invalid` and `clamp` (see `machine_code`), once registered.
functions: dict[str, int] = {}
# The names of the C functions that scripts call, by their addresses, for messages.
_names: dict[int, str] = {}


def _named(function: Any) -> int:
    address = _address(function)
    _names[address] = function.__name__
    return address


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
def _fail(frame: int, function: int) -> int | None:
    """The error of a call of a function that has failed."""
    return foreign_calls.make_error(frame, f"{_names[function]} failed: is the memory full?")
