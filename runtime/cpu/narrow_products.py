"""Functions in machine code that multiply rows by weights of narrow types, compiled when asked."""

import ctypes
import functools
from typing import Any

from xla_dynamo.runtime.cpu import native_code


@functools.cache
def function(kind: str) -> Any:
    """The C function of a kind of weight, `narrow_functions.KINDS`; it returns 0.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    try:
        from xla_dynamo.runtime.cpu import narrow_functions

        text = narrow_functions.KINDS[kind]()
    except ImportError as error:
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    made: Any = ctypes.CFUNCTYPE(ctypes.c_int)(native_code.load(text, {})["product"])
    made.__name__ = f"a product with a weight in {kind}"
    return made
