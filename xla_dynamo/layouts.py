"""Strided torch tensors to the row-major arrays that cross into XLA, and back.

XLA programs here take and return dense row-major arrays. A dense tensor in another order
(channels_last, a transposed weight) crosses as its row-major permutation, without a copy, and is
permuted inside the program, where XLA folds the transpose into what uses it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

Sizes = Sequence[int]
# What is still to be done to an exported tensor.
Finish = Callable[[torch.Tensor], torch.Tensor]


def is_row_major(size: Sizes, stride: Sizes) -> bool:
    """Whether a tensor is dense and row-major; strides of dimensions of size 1 do not matter."""
    expected = 1
    for n, s in zip(reversed(size), reversed(stride), strict=True):
        if n == 0:
            return True
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def row_major_order(size: Sizes, stride: Sizes) -> list[int] | None:
    """The permutation that makes a tensor dense and row-major, or None if there is none."""
    if is_row_major(size, stride):
        return list(range(len(size)))
    # Python's sort is stable, so dimensions of equal stride (size 1) keep their order.
    order = sorted(range(len(size)), key=lambda d: (-stride[d], -size[d]))
    return order if is_row_major([size[d] for d in order], [stride[d] for d in order]) else None


def inverse(permutation: Sequence[int]) -> list[int]:
    """The permutation that undoes another."""
    result = [0] * len(permutation)
    for place, dim in enumerate(permutation):
        result[dim] = place
    return result


class InputLayout(NamedTuple):
    """How a tensor enters a program.

    Attributes:
        prepare: run on the tensor before it is imported; None where it goes in as it is.
        order: `permute(order)` makes the array the program's argument; identity if row-major.
    """

    prepare: Callable[[torch.Tensor], torch.Tensor] | None
    order: list[int]


def input_layout(example: torch.Tensor) -> InputLayout:
    """Plan how tensors with the strides of `example` enter a program."""
    identity = list(range(example.ndim))
    order = row_major_order(example.shape, example.stride())
    if order is None:
        return InputLayout(torch.Tensor.contiguous, identity)
    if order == identity:
        return InputLayout(None, identity)
    return InputLayout(lambda tensor: tensor.permute(order), order)


class OutputLayout(NamedTuple):
    """How a program's array becomes a tensor with the strides that eager would give.

    Attributes:
        unexpanded: dimensions of stride 0, which the program returns with size 1.
        order: the program returns `unexpanded.permute(order)`, which is row-major.
        overlapping: the tensor's elements share memory: the program returns flat storage.
        finish: run on the exported tensor; None where it comes out as it is.
    """

    unexpanded: list[int]
    order: list[int]
    overlapping: bool
    finish: Finish | None


def storage_length(size: Sizes, stride: Sizes) -> int:
    """How many elements of storage a non-empty tensor spans."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def overlaps(size: Sizes, stride: Sizes) -> bool:
    """Whether elements may share memory: False is certain, True errs on the safe side."""
    reach = 0
    for s, n in sorted(zip(stride, size, strict=True)):
        if n > 1 and s <= reach:
            return True
        reach += (n - 1) * s
    return False


def output_layout(promised: torch.Tensor) -> OutputLayout:
    """Plan how an array becomes a tensor with the size and strides of `promised`."""
    size, stride = tuple(promised.shape), tuple(promised.stride())
    identity = list(range(len(size)))
    if is_row_major(size, stride):
        return OutputLayout([], identity, False, None)
    unexpanded = [d for d in identity if stride[d] == 0 and size[d] > 1]
    base = [1 if d in unexpanded else n for d, n in enumerate(size)]
    order = row_major_order(base, stride)
    if order is not None:
        # as_strided gives dimensions of size 1 the promised strides as well.
        return OutputLayout(
            unexpanded, order, False, lambda tensor: tensor.as_strided(size, stride)
        )
    if not overlaps(size, stride):
        return OutputLayout([], identity, False, lambda tensor: _with_strides(tensor, stride))
    return OutputLayout([], identity, True, lambda tensor: tensor.as_strided(size, stride))


def _with_strides(tensor: torch.Tensor, stride: Sizes) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tuple(stride), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
