"""The function in machine code for products of a few rows in int8, compiled when it is asked."""

import functools
from typing import Any

from xla_dynamo.runtime.cpu import features, native_code

# Rows up to which the matrix is read as fast as memory is, and no faster by a library.
MOST_ROWS = 8


def can_multiply() -> bool:
    """Whether this processor has the instruction that the function is written with."""
    return features.has("avx512_vnni") and native_code.can_compile()


@functools.cache
def function() -> Any:
    """The function of ctypes that computes some columns of a product x @ matrix.T in int32.

    It returns 0. Its arguments are addresses, then numbers:

        x [rows, inner] in int8, the matrix [columns, inner] in int8, the result [columns, rows];
        rows (no more than `MOST_ROWS`), inner, columns

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    try:
        from xla_dynamo.runtime.cpu import integer_functions
    except ImportError as error:
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    text = integer_functions.written(MOST_ROWS)
    return native_code.function(text, integer_functions.NAME, "a product of few rows in int8", 6)
