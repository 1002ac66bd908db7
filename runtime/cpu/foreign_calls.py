"""Calls from inside a program, which XLA makes through its foreign function interface (FFI).

A StableHLO custom call names a handler that is registered once. The handler here runs Python
functions, in the thread that reached the call and in others of XLA's pool.
"""

import ctypes
import functools
import itertools
import math
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from xla_dynamo.runtime.cpu.ffi_structures import (
    ERROR_CREATE,
    EXECUTE,
    INTERNAL,
    ITEM_SIZES,
    METADATA,
    NUMBER_OF_THREADS,
    SCHEDULE,
    Api,
    ErrorArguments,
    Frame,
    MetadataExtension,
    Number,
    Pointer,
    ScheduleArguments,
    ThreadsArguments,
)

TARGET = "xla_dynamo.call"
# Those of c_api.h whose structures begin as `ffi_structures` has them: jaxlib 0.10 to 0.12.
_KNOWN_VERSIONS = {(0, 3), (0, 4), (0, 5)}

_ApiFunction = ctypes.CFUNCTYPE(Pointer, Pointer)


class Memory(int):
    """The address of an operand or a result.

    Attributes:
        size: how many bytes the call has there.
    """

    size: int


class Kernel:
    """What a call does, made once of the text that the program names it by.

    A subclass splits its work in shares, which run in several threads at once.
    """

    def shares(self, threads: int) -> Sequence[Any]:
        """The work in about as many parts as there are threads."""
        raise NotImplementedError

    def run(self, share: Any, operands: Sequence[Memory], results: Sequence[Memory]) -> None:
        """Do a share, given the addresses of operands and results."""
        raise NotImplementedError


_makers: dict[str, Callable[[str], Kernel]] = {}


def kernel(name: str) -> Callable[[Callable[[str], Kernel]], Callable[[str], Kernel]]:
    """Register what makes the kernels whose text begins with `name:`, of the rest of it."""

    def register(make: Callable[[str], Kernel]) -> Callable[[str], Kernel]:
        _makers[name] = make
        return make

    return register


@functools.lru_cache(maxsize=4096)
def _kernel_of(text: bytes) -> Kernel:
    name, _, rest = text.decode().partition(":")
    return _makers[name](rest)


@functools.cache
def can_call() -> bool:
    """Whether programs for the CPU can call; registers the handler if so."""
    if _version() not in _KNOWN_VERSIONS:
        return False
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler_address()), platform="cpu")
    return True


@functools.cache
def _version() -> tuple[int, int] | None:
    """The version of the API, as its header has it."""
    header = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    text = header.read_text() if header.exists() else ""
    found = [re.search(rf"XLA_FFI_API_{part} (\d+)", text) for part in ("MAJOR", "MINOR")]
    numbers = [int(match[1]) for match in found if match]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None


class _Job:
    """One call: its shares are taken by whoever comes, and it ends when the last is done."""

    def __init__(self, kernel: Kernel, frame: Any, threads: int) -> None:
        self._kernel = kernel
        self._operands = _addresses(frame.operands)
        self._results = _addresses(frame.results)
        self.shares = list(kernel.shares(threads))
        self._left = len(self.shares)
        self._count = threading.Lock()
        self._running = threading.Lock()
        if self.shares:
            self._running.acquire()
        self.error: BaseException | None = None

    def help(self) -> None:
        """Do shares until none is left to be taken."""
        while True:
            try:
                share = self.shares.pop()  # atomic
            except IndexError:
                return
            try:
                self._kernel.run(share, self._operands, self._results)
            except BaseException as error:
                self.error = error
            with self._count:
                self._left -= 1
                if not self._left:
                    self._running.release()

    def wait(self) -> None:
        """Wait for the shares that others have taken."""
        self._running.acquire()


def _addresses(values: Any) -> list[Memory]:
    return [_memory(values.values[i].contents) for i in range(values.size)]


def _memory(buffer: Any) -> Memory:
    made = Memory(buffer.data or 0)
    dims = (Number * buffer.rank).from_address(buffer.dims) if buffer.rank else ()
    made.size = math.prod(dims) * ITEM_SIZES.get(buffer.dtype, 0)
    return made


_jobs: dict[int, _Job] = {}
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, Pointer)
def _task(number: int) -> None:
    job = _jobs.get(number)
    if job is not None:  # else all shares were done before this thread came
        job.help()


@ctypes.CFUNCTYPE(Pointer, ctypes.POINTER(Frame))
def _handler(pointer: Any) -> int | None:
    frame = pointer.contents
    if frame.extension_start:
        extension = MetadataExtension.from_address(frame.extension_start)
        if extension.type == METADATA:
            version = extension.metadata.contents.version
            version.major, version.minor = _version() or (0, 0)
            return None
    if frame.stage != EXECUTE:
        return None
    try:
        _run(frame)
    except BaseException as error:
        return _make_error(ctypes.addressof(frame), f"{type(error).__name__}: {error}")
    return None


def _make_error(frame: int, message: str) -> int | None:
    """What a handler returns that has failed: the address of an error of XLA's.

    `frame` is the address of the call's frame.
    """
    arguments = ErrorArguments(ctypes.sizeof(ErrorArguments), None, message.encode(), INTERNAL)
    return _api(Frame.from_address(frame), ERROR_CREATE)(ctypes.addressof(arguments))


def handler_address() -> int:
    """The address of the handler, which answers what XLA asks of any handler beside calls."""
    return ctypes.cast(_handler, Pointer).value or 0


def _run(frame: Any) -> None:
    """Have a call's shares done by XLA's threads.

    A thread of the user's only waits: there are settings in it that are not to be touched. One of
    XLA's helps, or all of them might be waiting for each other.
    """
    span = frame.attributes.values[0].contents
    made = _kernel_of(ctypes.string_at(span.ptr, span.len))
    job = _Job(made, frame, _number_of_threads(frame))
    helps = _is_foreign_thread()
    number = next(_numbers)
    _jobs[number] = job
    try:
        for _ in range(len(job.shares) - helps):
            _schedule(frame, number)
        if helps:
            job.help()
        job.wait()
    finally:
        del _jobs[number]
    if job.error is not None:
        raise job.error


def _is_foreign_thread() -> bool:
    """Whether XLA started this thread: nothing of Python's stands below the handler."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_globals is globals():
        frame = frame.f_back
    return frame is None


def _schedule(frame: Any, number: int) -> None:
    """Have a thread of XLA's pool run `_task`."""
    arguments = ScheduleArguments(
        ctypes.sizeof(ScheduleArguments),
        None,
        frame.context,
        ctypes.cast(_task, Pointer),
        number,
    )
    if _api(frame, SCHEDULE)(ctypes.addressof(arguments)):
        _jobs[number].help()  # there is no pool


def _number_of_threads(frame: Any) -> int:
    count = Number(1)
    arguments = ThreadsArguments(
        ctypes.sizeof(ThreadsArguments), None, frame.context, ctypes.pointer(count)
    )
    failed = _api(frame, NUMBER_OF_THREADS)(ctypes.addressof(arguments))
    return 1 if failed else max(count.value, 1)


def _api(frame: Any, number: int) -> Callable[[int], int | None]:
    return _ApiFunction(Api.from_address(frame.api).functions[number])
