"""Calls from inside a program, which XLA makes through its foreign function interface (FFI).

A StableHLO custom call names a handler that is registered once. The handler here runs Python
functions, in the thread that reached the call and in others of XLA's pool. The structures that it
reads are declared in xla/ffi/api/c_api.h, which jaxlib includes.
"""

import ctypes
import functools
import itertools
import pathlib
import re
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

TARGET = "xla_dynamo.call"
# Those of c_api.h whose structures begin as they are written here: jaxlib 0.10 to 0.12.
_KNOWN_VERSIONS = {(0, 3), (0, 4), (0, 5)}

_Pointer, _Size, _Number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


def _struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    """A structure of the API: all begin with their size and a pointer to extensions."""
    first = {"struct_size": _Size, "extension_start": _Pointer}
    return type(name, (ctypes.Structure,), {"_fields_": [*{**first, **fields}.items()]})


class _Span(ctypes.Structure):
    _fields_ = [("ptr", _Pointer), ("len", _Size)]


_Buffer: Any = _struct("Buffer", dtype=ctypes.c_int, data=_Pointer, rank=_Number, dims=_Pointer)
_Values: Any = _struct(
    "Values", size=_Number, types=_Pointer, values=ctypes.POINTER(ctypes.POINTER(_Buffer))
)
_Attributes: Any = _struct(
    "Attributes",
    size=_Number,
    types=_Pointer,
    names=_Pointer,
    values=ctypes.POINTER(ctypes.POINTER(_Span)),
)
_Frame: Any = _struct(
    "Frame",
    api=_Pointer,
    context=_Pointer,
    stage=ctypes.c_int,
    operands=_Values,
    results=_Values,
    attributes=_Attributes,
)
_Version: Any = _struct("Version", major=ctypes.c_int, minor=ctypes.c_int)
_EXECUTE, _METADATA = 3, 1


class _Metadata(ctypes.Structure):
    _fields_ = [
        ("struct_size", _Size),
        ("version", _Version),
        ("traits", ctypes.c_uint32),
        ("state_type_id", _Number),
    ]


_MetadataExtension: Any = type(
    "MetadataExtension",
    (ctypes.Structure,),
    {
        "_fields_": [
            ("struct_size", _Size),
            ("type", ctypes.c_int),
            ("next", _Pointer),
            ("metadata", ctypes.POINTER(_Metadata)),
        ]
    },
)
_Api: Any = _struct("Api", version=_Version, internal=_Pointer, functions=_Pointer * 13)
_ERROR_CREATE, _SCHEDULE, _NUMBER_OF_THREADS = 0, 11, 12
_ApiFunction = ctypes.CFUNCTYPE(_Pointer, _Pointer)
_ErrorArguments: Any = _struct("ErrorArguments", message=ctypes.c_char_p, code=ctypes.c_int)
_ScheduleArguments: Any = _struct(
    "ScheduleArguments", context=_Pointer, task=_Pointer, data=_Pointer
)
_ThreadsArguments: Any = _struct(
    "ThreadsArguments", context=_Pointer, count=ctypes.POINTER(_Number)
)
_INTERNAL = 13  # XLA_FFI_Error_Code_INTERNAL


class Kernel:
    """What a call does, made once of the text that the program names it by.

    A subclass splits its work in shares, which run in several threads at once.
    """

    def shares(self, threads: int) -> Sequence[Any]:
        """The work in about as many parts as there are threads."""
        raise NotImplementedError

    def run(self, share: Any, operands: Sequence[int], results: Sequence[int]) -> None:
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


def _addresses(values: Any) -> list[int]:
    return [values.values[i].contents.data or 0 for i in range(values.size)]


_jobs: dict[int, _Job] = {}
_numbers = itertools.count(1)


@ctypes.CFUNCTYPE(None, _Pointer)
def _task(number: int) -> None:
    job = _jobs.get(number)
    if job is not None:  # else all shares were done before this thread came
        job.help()


@ctypes.CFUNCTYPE(_Pointer, ctypes.POINTER(_Frame))
def _handler(pointer: Any) -> int | None:
    frame = pointer.contents
    if frame.extension_start:
        extension = _MetadataExtension.from_address(frame.extension_start)
        if extension.type == _METADATA:
            version = extension.metadata.contents.version
            version.major, version.minor = _version() or (0, 0)
            return None
    if frame.stage != _EXECUTE:
        return None
    try:
        _run(frame)
    except BaseException as error:
        return make_error(ctypes.addressof(frame), f"{type(error).__name__}: {error}")
    return None


def make_error(frame: int, message: str) -> int | None:
    """What a handler returns that has failed: the address of an error of XLA's.

    `frame` is the address of the call's frame.
    """
    arguments = _ErrorArguments(ctypes.sizeof(_ErrorArguments), None, message.encode(), _INTERNAL)
    return _api(_Frame.from_address(frame), _ERROR_CREATE)(ctypes.addressof(arguments))


def handler_address() -> int:
    """The address of the handler, which answers what XLA asks of any handler beside calls."""
    return ctypes.cast(_handler, _Pointer).value or 0


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
    arguments = _ScheduleArguments(
        ctypes.sizeof(_ScheduleArguments),
        None,
        frame.context,
        ctypes.cast(_task, _Pointer),
        number,
    )
    if _api(frame, _SCHEDULE)(ctypes.addressof(arguments)):
        _jobs[number].help()  # there is no pool


def _number_of_threads(frame: Any) -> int:
    count = _Number(1)
    arguments = _ThreadsArguments(
        ctypes.sizeof(_ThreadsArguments), None, frame.context, ctypes.pointer(count)
    )
    failed = _api(frame, _NUMBER_OF_THREADS)(ctypes.addressof(arguments))
    return 1 if failed else max(count.value, 1)


def _api(frame: Any, number: int) -> Callable[[int], int | None]:
    return _ApiFunction(_Api.from_address(frame.api).functions[number])
