"""Calls of C functions from inside a program, with no Python in the way.

A custom call of `TARGET` runs a plan: parts, which threads of XLA's pool do side by side. A part is
a script: the calls of some functions that return 0, one after another. If one returns another
number, the part's second script is run instead. `script_runner` runs both, and `script_layout` says
how they lie in memory.

The custom call's first operand is an array of addresses of plans, and its one attribute is the
number of the plan among them. So programs hold no address, and their executables may be saved.

While a script runs there are 40 slots of 64 bits. The first hold the addresses of the custom call's
operands and then of its results; the others are free.
"""

import ctypes
import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import torch

from xla_dynamo.runtime.cpu import foreign_calls, native_code, script_layout, torch_functions

FIRST_FREE, NUMBER_OF_SLOTS = script_layout.MOST_ADDRESSES, script_layout.NUMBER_OF_SLOTS
FLOAT_FUNCTIONS = ("forget", "invalid", "clamp", "clamp_bfloat16")
_ALIGNMENT = 64  # XLA:CPU copies what is not aligned so


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
    kind = script_layout.IN_SLOTS | script_layout.LOADED | offset << script_layout.OFFSET
    return Argument(kind, _place(index))


def place_of_slot(index: int) -> Argument:
    """The address of a slot."""
    return Argument(script_layout.IN_SLOTS, _place(index))


def _place(index: int) -> int:
    """Where a slot is among the slots, in bytes."""
    if not 0 <= index < script_layout.NUMBER_OF_SLOTS:
        raise ValueError(f"slot {index} is not among {script_layout.NUMBER_OF_SLOTS}")
    return script_layout.WORD * index


class Script:
    """The calls of a script, as they are added."""

    def __init__(self) -> None:
        """Begin without any."""
        self._words: list[int] = [0]

    def call(
        self, function: Any, *arguments: Argument, stored: Mapping[int, Argument] = _NOTHING
    ) -> None:
        """Add a call of a function of ctypes, which has a name for messages, to the script.

        Before the call, the script writes the values of `stored` into the slots of these numbers.
        An argument that is read from a slot is read before that: it is the slot's value so far.

        Raises:
            ValueError: there are more arguments than the handler has room for, or no such slot.
        """
        if len(arguments) > script_layout.MOST_ARGUMENTS:
            raise ValueError(f"a call has more than {script_layout.MOST_ARGUMENTS} arguments")
        word = script_layout.WORD
        placed = [(script_layout.ARGUMENTS + word * i, a) for i, a in enumerate(arguments)]
        placed += [(script_layout.SLOTS + _place(index), a) for index, a in stored.items()]
        self._words[0] += 1
        message = ctypes.addressof(_failure_of(function.__name__))
        self._words += [_address(function), message, len(placed)]
        for place, (kind, value) in placed:
            self._words += [place, kind, value]

    def memory(self) -> ctypes.Array:
        """The script in memory of its own."""
        return _array(self._words)


def _failure_of(name: str) -> ctypes.Array:
    """The message of a function's failure, which scripts have the address of: kept for good."""
    text = f"{name} failed: is the memory full?".encode()
    return _failures.setdefault(name, ctypes.create_string_buffer(text))


_failures: dict[str, ctypes.Array] = {}


class Plan:
    """Parts in memory, which this object holds.

    Attributes:
        address: the address of the plan.
    """

    def __init__(
        self, parts: Sequence[tuple[Script, Script | None]], helpers: int, *, stays: bool = False
    ) -> None:
        """Take parts, each a script and one for its failure, and how many threads are to help.

        Those who help stay for a while, if they are to, since another call follows soon.
        """
        self._held = [s.memory() for part in parts for s in part if s is not None]
        addresses = iter(map(ctypes.addressof, self._held))
        words = [next(addresses) if s is not None else 0 for part in parts for s in part]
        looks = script_layout.LOOKS if stays else 0
        self._held.append(_array([len(parts), min(helpers, len(parts) - 1), looks, *words]))
        self.address = ctypes.addressof(self._held[-1])


def _array(words: Sequence[int]) -> ctypes.Array:
    return (ctypes.c_int64 * len(words))(*words)


def handles_of(kernels: Sequence[Any]) -> torch.Tensor:
    """The addresses of the plans of kernels, int64, one for the `plan` of each.

    The result's memory holds the kernels, so they live as long as a buffer over it.
    """
    holder = _Holder(8 * len(kernels) + _ALIGNMENT)
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(holder)) % _ALIGNMENT
    holder.held = tuple(kernels)
    memory = torch.frombuffer(holder, dtype=torch.int64, count=len(kernels), offset=offset)
    addresses = [one.plan.address for one in kernels]
    memory.copy_(torch.tensor(addresses, device="cpu"))
    return memory


class _Holder(bytearray):
    """The memory of addresses, which holds what they are addresses of."""

    held: Sequence[Any] = ()


def can_run() -> bool:
    """Whether this process can run scripts, as far as is known before llvmlite is imported."""
    return native_code.can_compile() and foreign_calls.can_call()


def register(threads: tuple[Any, Any]) -> None:
    """Compile the handler, and register it, unless that was done.

    No program with a call of `TARGET` can be compiled or loaded before.

    Args:
        threads: OpenMP's functions that tell and set how many threads a thread's loops have: a
            script has one alone.

    Raises:
        NativeCodeError: the handler cannot be compiled here.
    """
    with _registering:
        if functions:
            return
        addresses = compiled(threads)
        capsule = jax.ffi.pycapsule(addresses["handler"])
        jax.ffi.register_ffi_target(script_layout.TARGET, capsule, platform="cpu")
        for name in FLOAT_FUNCTIONS:
            functions[name] = ctypes.CFUNCTYPE(ctypes.c_int)(addresses[name])
            functions[name].__name__ = name


def compiled(threads: tuple[Any, Any], **others: Any) -> dict[str, int]:
    """Compile the handler and what scripts may call of ours; returns their addresses.

    `others` are functions, by name, in place of those that the handler calls.
    """
    c = ctypes.CDLL(None)
    try:
        from xla_dynamo.runtime.cpu import script_runner

        cores = [name for name in script_runner.CORE_FUNCTIONS if hasattr(c, name)]
        knows_cores = len(cores) == len(script_runner.CORE_FUNCTIONS)
        text = script_runner.written(native_code.architecture(), knows_cores)
    except Exception as error:  # another release, or half of one, may raise anything
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    tell, change = threads
    given = {"omp_get_max_threads": tell, "omp_set_num_threads": change, **others}
    # Torch's is linked with MKL on x86. Elsewhere a function that changes nothing is called.
    given.setdefault("MKL_Set_Num_Threads_Local", torch_functions.mkl_threads() or c.abs)
    externals = {"other_handler": foreign_calls.handler_address()}
    for name in (*script_runner.EXTERNALS, *(cores if knows_cores else ())):
        if name not in externals:
            externals[name] = _address(given.get(name) or getattr(c, name))
    return native_code.load(text, externals)


_registering = threading.Lock()
# The functions of `float_functions`, by name, once registered.
functions: dict[str, Any] = {}


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
