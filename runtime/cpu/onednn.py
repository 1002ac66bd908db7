"""oneDNN's C API (oneapi/dnnl/dnnl.h, version 3), where its library is installed.

torch and jaxlib have oneDNN inside, and export none of it. The package `onednn-cpu-gomp` of PyPI
has the library by itself, as have Debian's `libdnnl3` and conda's `onednn`.
"""

import contextlib
import ctypes
import functools
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from xla_dynamo.runtime.cpu import torch_functions

_NAME = "libdnnl.so.3"
_OPENMP = 2  # how a library's threads are made
_CPU, _IN_ORDER, _ANY_LAYOUT, _KERNEL, _FROM, _TO = 1, 1, 1, 8, 1, 17
_DTYPES = {torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}
_USERS_SCRATCHPAD = 1
# What the scratchpad's memory is to a primitive, what asks for its description, and the algorithm
# of convolutions.
SCRATCHPAD, SCRATCHPAD_DESC, DIRECT = 80, 136, 1


class OneDNNError(RuntimeError):
    """A function of oneDNN has failed."""


class _Version(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_int),
        ("minor", ctypes.c_int),
        ("patch", ctypes.c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", ctypes.c_uint),
    ]


@functools.cache
def library() -> Any:
    """The library; None if there is none whose threads OpenMP makes: of these it can have one."""
    for path in (pathlib.Path(sys.prefix) / "lib" / _NAME, _NAME):
        try:
            found = ctypes.CDLL(str(path))
            found.dnnl_version.restype = ctypes.POINTER(_Version)
            version = found.dnnl_version().contents
        except (OSError, AttributeError):
            continue
        if version.major == 3 and version.cpu_runtime == _OPENMP:
            found.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
            found.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
            return found
    return None


class Object:
    """A handle of something that oneDNN has made, which is destroyed with it."""

    def __init__(self, kind: str, make: str, *arguments: Any) -> None:
        """Call `dnnl_make` for an object that `dnnl_kind_destroy` destroys."""
        self._destroy = getattr(library(), f"dnnl_{kind}_destroy")
        self._as_parameter_ = ctypes.c_void_p()
        check(make, ctypes.byref(self._as_parameter_), *arguments)

    @property
    def handle(self) -> int:
        """The handle, as C has it."""
        return self._as_parameter_.value or 0

    def __del__(self) -> None:
        """Destroy the object."""
        if self._as_parameter_:
            self._destroy(self._as_parameter_)


def check(name: str, *arguments: Any) -> None:
    """Call `dnnl_name`.

    Raises:
        OneDNNError: it has failed.
    """
    if status := getattr(library(), f"dnnl_{name}")(*arguments):
        raise OneDNNError(f"dnnl_{name} of oneDNN failed with status {status}")


@functools.cache
def engine() -> Object:
    """The engine of the CPU."""
    return Object("engine", "engine_create", _CPU, ctypes.c_size_t(0))


@functools.cache
def stream() -> Object:
    """A stream, which any thread may use: on the CPU it has no state."""
    return Object("stream", "stream_create", engine(), _IN_ORDER)


def numbers(values: Sequence[int]) -> ctypes.Array:
    """Sizes, strides or paddings."""
    return (ctypes.c_int64 * len(values))(*values)


def described(
    shape: Sequence[int], strides: Sequence[int] | None, dtype: torch.dtype = torch.float32
) -> Object:
    """A description of memory; without strides oneDNN is to choose the layout."""
    make = "memory_desc_create_with_tag" if strides is None else "memory_desc_create_with_strides"
    layout = _ANY_LAYOUT if strides is None else numbers(strides)
    sizes = numbers(shape)
    return Object("memory_desc", make, len(shape), sizes, _DTYPES[dtype], layout)


def described_primitive(
    kind: str, arguments: Sequence[Any], faster: Mapping[str, str], wrong: str = ""
) -> Object:
    """A primitive descriptor of oneDNN.

    oneDNN lists its implementations in an order of preference. The descriptor is for the first. It
    is for the second where `faster` maps the first one's name to the second one's. Where `wrong` is
    given, those whose names end so are left out.

    Raises:
        OneDNNError: no implementation is left.
    """
    make = f"{kind}_primitive_desc_create"
    first, second = (Object("primitive_desc", make, *arguments) for _ in range(2))
    while wrong and kernel_of(first).endswith(wrong):
        check("primitive_desc_next_impl", first)
    wanted = faster.get(kernel_of(first))
    if wrong or wanted is None or library().dnnl_primitive_desc_next_impl(second):
        return first
    return second if kernel_of(second) == wanted else first


def kernel_of(primitive_desc: Object) -> str:
    """The name of the kernel that a description of a primitive has."""
    name = ctypes.c_char_p()
    check("primitive_desc_query", primitive_desc, _KERNEL, 0, ctypes.byref(name))
    return (name.value or b"").decode()


def chosen(primitive_desc: Object, query: int) -> tuple[ctypes.c_void_p, int]:
    """A description of memory that a description of a primitive has, and the bytes it takes."""
    desc = ctypes.c_void_p(library().dnnl_primitive_desc_query_md(primitive_desc, query, 0))
    return desc, library().dnnl_memory_desc_get_size(desc) if desc else 0


def are_equal(one: Any, other: Any) -> bool:
    """Whether two descriptions of memory are the same."""
    return bool(library().dnnl_memory_desc_equal(one, other))


def memory(desc: Any, address: int) -> Object:
    """What oneDNN calls memory: memory at an address, and its description."""
    return Object("memory", "memory_create", desc, engine(), ctypes.c_void_p(address))


def empty(size: int) -> torch.Tensor:
    """Bytes on the CPU, whatever the caller's default device."""
    return torch.empty(size, dtype=torch.uint8, device="cpu")


def attributes() -> Object:
    """Attributes of a primitive whose scratchpad comes with each call: threads may share it."""
    made = Object("primitive_attr", "primitive_attr_create")
    check("primitive_attr_set_scratchpad_mode", made, _USERS_SCRATCHPAD)
    return made


def described_reorder(source: Any, target: Any, how: Object | None) -> Object:
    """The descriptor of the primitive that copies memory of one description into another's.

    `how` are its attributes, if it has any.
    """
    made = (source, engine(), target, engine(), how)
    return Object("primitive_desc", "reorder_primitive_desc_create", *made)


def reordering(source: Any, target: Any) -> Object:
    """The primitive that copies memory of one description into memory of another (`reorder`)."""
    return Object("primitive", "primitive_create", described_reorder(source, target, None))


def part_of(whole: Any, sizes: Sequence[int], starts: Sequence[int]) -> Object:
    """The description of a part of memory, by its sizes and where it starts in each dimension.

    Raises:
        OneDNNError: the part cuts a block of the layout.
    """
    part = numbers(sizes), numbers(starts)
    return Object("memory_desc", "memory_desc_create_submemory", whole, *part)


def reorder(primitive: Object, source: Object, target: Object) -> None:
    """Copy memory into other memory."""
    execute(primitive, {_FROM: source, _TO: target})


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """What this thread makes of oneDNN's meanwhile runs in one thread: that which executes it."""
    tell, change = threads()
    before = tell()
    change(1)
    try:
        yield
    finally:
        change(before)


def threads() -> tuple[Any, Any]:
    """OpenMP's functions that tell and set how many threads a thread's loops have.

    Torch's tells, if it has one. Else the first kernel of torch in a thread of XLA's pool would set
    torch's number there, after a script has set 1, and start as many threads for that thread. With
    more threads than cores OpenMP never spins: each of torch's own loops, such as an optimizer's,
    then waits 60 us for its threads, as long as the process lives.
    """
    tells = torch_functions.threads() or library().omp_get_max_threads
    return tells, library().omp_set_num_threads


class ExecutionArgument(ctypes.Structure):
    """`dnnl_exec_arg_t`: what memory is to a primitive, by a number, and the memory."""

    _fields_ = [("number", ctypes.c_int64), ("memory", ctypes.c_void_p)]


def execute(primitive: Object, arguments: dict[int, Object]) -> None:
    """Execute a primitive on memory."""
    given = [ExecutionArgument(number, one.handle) for number, one in arguments.items()]
    array = (ExecutionArgument * len(given))(*given)
    check("primitive_execute", primitive, stream(), len(given), array)
