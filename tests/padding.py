"""Padding that does harm if a bounded program reads it."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from xla_dynamo.variants import bounded_calls


@contextlib.contextmanager
def harmful_padding() -> Iterator[None]:
    """Fill what stands behind the elements of inputs with NaN, or a number that is no index."""
    zeros = bounded_calls.zeros

    def harmful(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        is_float = dtype.is_floating_point or dtype.is_complex
        return zeros(size, stride, dtype).fill_(float("nan") if is_float else 97)

    bounded_calls.zeros = harmful
    try:
        yield
    finally:
        bounded_calls.zeros = zeros
