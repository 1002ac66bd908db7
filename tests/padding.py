"""Padding that does harm if a bounded program reads it."""

import contextlib
from collections.abc import Iterator, Sequence

import torch

from xla_dynamo.execution import bounded_calls


@contextlib.contextmanager
def harmful_padding() -> Iterator[None]:
    """Fill what stands behind the elements of inputs with NaN, or a number that is no index."""
    pad = bounded_calls.padded

    def fill(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        whole = pad(tensor, size, stride)
        if whole is not tensor:
            behind = torch.ones(tuple(size), dtype=torch.bool)
            behind[tuple(slice(n) for n in tensor.shape)] = False
            is_float = whole.is_floating_point() or whole.is_complex()
            whole.masked_fill_(behind, float("nan") if is_float else 97)
        return whole

    bounded_calls.padded = fill
    try:
        yield
    finally:
        bounded_calls.padded = pad
