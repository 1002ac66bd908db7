"""The function in machine code for attention of a few queries, compiled when it is asked."""

import functools
from typing import Any

import torch

from xla_dynamo.runtime.cpu import features, native_code
from xla_dynamo.runtime.cpu.paged_attention import LANES


@functools.cache
def function(
    dtype: torch.dtype,
    mask_dtype: torch.dtype | None,
    sizes: tuple[int, int, int, int, int, int],
    scale: float,
    causal: bool,
    strides: tuple[tuple[int, ...], ...],
) -> Any:
    """The function of ctypes that attends for some queries and heads.

    It returns 0, or 1 where there is no memory. Its arguments are the addresses of queries, keys,
    values, a mask (or null), the output, and the logarithms of the scores' sums in float32; then
    which part of the work, of how many.

    A query whose keys are all hidden gets zeros. What is hidden in front of the first key that the
    mask shows, and behind the last, is not read: a NaN there stays unseen.

    Args:
        dtype: of queries, keys, values and the output, float32 or bfloat16; sums are in float32.
        mask_dtype: of the mask, float32 or bfloat16, which is added; None without one.
        sizes: of the batch, heads of queries and of keys, queries, keys, and of a head, which is a
            multiple of `LANES`.
        scale: of the scores.
        causal: whether query i sees the keys 0 to i alone.
        strides: of the six arrays, each of the batch, the heads and the length, in elements.

    Raises:
        NativeCodeError: it cannot be compiled here.
    """
    try:
        from xla_dynamo.runtime.cpu import attention_functions, masked_functions
    except ImportError as error:
        raise native_code.NativeCodeError(f"llvmlite cannot be imported: {error}") from error
    of = masked_functions.Attention(dtype, mask_dtype, *sizes, scale, causal, strides)
    text = masked_functions.written(of, LANES if "avx512" in features.family() else LANES // 2)
    told, externals = "attention of a few queries", attention_functions.EXTERNALS
    return native_code.function(text, masked_functions.NAME, told, 8, externals)
