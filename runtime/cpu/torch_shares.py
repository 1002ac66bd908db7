"""What a share of a kernel of torch needs: tensors over XLA's memory, and one thread alone."""

import ctypes
import functools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from xla_dynamo.errors import LoweringError
from xla_dynamo.runtime.cpu import torch_functions
from xla_dynamo.runtime.cpu.foreign_calls import Memory
from xla_dynamo.runtime.cpu.shares import ranges
from xla_dynamo.torch_private import invert_perm


@functools.cache
def _library() -> Any:
    """The library of torch's that has OpenMP and MKL; None where it has others."""
    names = ("omp_set_num_threads", "MKL_Set_Num_Threads_Local")
    found = torch_functions.library()
    return found if all(hasattr(found, name) for name in names) else None


def can_share() -> bool:
    """Whether a thread can be told to use no others."""
    return _library() is not None


def set_threads_here(number: int) -> None:
    """Let torch's loops in this thread have so many threads; those of other threads stay."""
    _library().omp_set_num_threads(number)


@contextmanager
def alone() -> Iterator[None]:
    """No threads but this one, which is XLA's, and no autograd."""
    library = _library()
    threads = torch.get_num_threads()  # the first time in a thread, this sets what is set here
    library.omp_set_num_threads(1)
    library.MKL_Set_Num_Threads_Local(1)
    try:
        with torch.no_grad():
            yield
    finally:  # scripts of calls use torch's other threads (`call_scripts`)
        library.omp_set_num_threads(threads)
        library.MKL_Set_Num_Threads_Local(0)


def tensor_at(
    memory: Memory, shape: Sequence[int], order: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    """The tensor whose elements lie in memory, with its dimensions in this order there.

    Raises:
        LoweringError: the memory has another size, since the call is not the one that was written.
    """
    size = math.prod(shape) * dtype.itemsize
    if size != memory.size:
        raise LoweringError(
            f"a call has {memory.size} bytes where its kernel has {list(shape)} of {dtype}"
        )
    bytes_ = (ctypes.c_char * size).from_address(memory)
    flat = torch.frombuffer(bytes_, dtype=dtype)
    return flat.view([shape[d] for d in order]).permute(invert_perm(order))


def slices(count: int, number: int) -> list[slice]:
    """`ranges`, as slices of a dimension."""
    return [slice(one.start, one.stop) for one in ranges(count, number)]
