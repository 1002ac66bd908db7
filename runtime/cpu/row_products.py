"""Functions in machine code for products of a few rows, compiled when they are asked."""

import ctypes
import functools
from typing import Any

import torch

from xla_dynamo.runtime.cpu import features, native_code


@functools.cache
def function(
    is_transposed: bool, given: torch.dtype, weight: torch.dtype, made: torch.dtype
) -> Any:
    """The function of ctypes that computes some columns of a product x @ matrix (+ bias + sum).

    It returns 0, or 1 where there is no memory. Its arguments are addresses of the first elements
    that it reads or writes, then numbers:

        x [rows, inner], the matrix, a bias [columns] or null, what is added [rows, columns] or
        null, the result [rows, columns]; rows, inner, columns, all columns

    The matrix is [inner, all columns], or transposed [all columns, inner]. What is added, and the
    result, have as many elements between rows as there are columns in all.

    Args:
        is_transposed: whether the matrix is.
        given: the dtype of x and of the bias, float32 or bfloat16.
        weight: that of the matrix: float32, bfloat16 or int8.
        made: that of the result and of what is added: float32 or bfloat16.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    try:
        from xla_dynamo.runtime.cpu import row_functions
    except ImportError as error:
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    fits = row_functions.WIDE if "avx512" in features.family() else row_functions.NARROW
    text = row_functions.written(is_transposed, given, weight, made, fits)
    c = ctypes.CDLL(None)
    known = {n: ctypes.cast(getattr(c, n), ctypes.c_void_p) for n in row_functions.EXTERNALS}
    addresses = native_code.load(text, {name: at.value or 0 for name, at in known.items()})
    return of_address(addresses[row_functions.NAME])


def of_address(address: int) -> Any:
    """The function at an address, as ctypes has it."""
    found: Any = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 9)(address)
    found.__name__ = "a product of few rows"
    return found
