"""The function in machine code for attention to a paged cache, compiled when it is asked."""

import functools
from typing import Any

import torch

from xla_dynamo.runtime.cpu import features, native_code

# A head's size is a multiple of it: as many floats as the widest vectors have.
LANES = 16


@functools.cache
def function(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, between: int, scale: float
) -> Any:
    """The function of ctypes that attends for some tokens and heads.

    It returns 0, or 1 where there is no memory. Its arguments are addresses of arrays, row-major
    and in the dtype unless told, then numbers:

        queries [tokens, heads, size]; keys and values of the tokens, each [tokens, kv heads, size];
        the cache's rows from the first keys on, each [kv heads, size]; which of them are read
        [keys] in int64; where each request's tokens begin, and where its keys do, each
        [requests + 1] in int32; a mask [tokens, keys], which is added to the scores; the result
        [tokens, heads, size];
        tokens, requests, keys, which part of the work, of how many

    A request's last keys are those of its tokens, and are not read from the cache. The values of a
    key come `between` rows behind it. A token of no request gets zeros.

    Args:
        dtype: float32 or bfloat16; sums are in float32.
        heads: of queries.
        kv_heads: of keys and values, a divisor of the heads.
        size: of a head, a multiple of `LANES`.
        between: see above.
        scale: of the scores.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    try:
        from xla_dynamo.runtime.cpu import attention_functions, paged_functions
    except ImportError as error:
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    of = paged_functions.Attention(dtype, heads, kv_heads, size, between, scale)
    text = paged_functions.written(of, LANES if "avx512" in features.family() else LANES // 2)
    told, externals = "attention to a paged cache", attention_functions.EXTERNALS
    return native_code.function(text, paged_functions.NAME, told, 14, externals)
