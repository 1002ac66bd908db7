"""The function in machine code that multiplies rows by int4 weights, compiled when it is asked."""

import functools
from typing import Any

from xla_dynamo.runtime.cpu import native_code


@functools.cache
def function(scales: str) -> Any:
    """The C function of `int4_functions` for scales of a dtype, by its name; it returns 0.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    try:
        from xla_dynamo.runtime.cpu import int4_functions
    except ImportError as error:
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    text = int4_functions.write_int4_products(scales)
    told = f"a product with a weight in int4 and scales in {scales}"
    return native_code.function(text, "product", told)
