"""Functions in machine code that multiply rows by weights of narrow types, compiled when asked."""

import ctypes
import functools
import importlib
from typing import Any

from xla_dynamo.runtime.cpu import native_code

# The modules that write them, which import llvmlite, by whether the weight has two elements a byte.
_WRITERS = {
    False: ("narrow_functions", "write_row_products"),
    True: ("int4_functions", "write_int4_products"),
}
INT4 = "int4 "  # how the kinds begin that have two


@functools.cache
def function(kind: str) -> Any:
    """The C function `product` for a kind of weight; it returns 0.

    Args:
        kind: the name of the weight's dtype, for `narrow_functions.write_row_products`; or `INT4`
            and the name of the scales' dtype, for `int4_functions.write_int4_products`.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    module, writer = _WRITERS[kind.startswith(INT4)]
    try:
        found = importlib.import_module(f"xla_dynamo.runtime.cpu.{module}")
    except ImportError as error:
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    text = getattr(found, writer)(kind.removeprefix(INT4))
    made: Any = ctypes.CFUNCTYPE(ctypes.c_int)(native_code.load(text, {})["product"])
    made.__name__ = f"a product with a weight in {kind}"
    return made
