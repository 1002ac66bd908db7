"""Strided torch tensors to the row-major arrays that cross into XLA, and back.

XLA programs here take and return dense row-major arrays. A dense tensor in another order
(channels_last, a transposed weight) crosses as its row-major permutation, without a copy, and is
permuted inside the program, where XLA folds the transpose into what uses it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from xla_dynamo.lowerings.builders.strides import (
    Sizes,
    is_row_major,
    overlaps,
    row_major_order,
)

# What is still to be done to an exported tensor.
Finish = Callable[[torch.Tensor], torch.Tensor]


class InputLayout(NamedTuple):
    """How a tensor enters a program.

    Attributes:
        prepare: run on the tensor before it is imported; None where it goes in as it is.
        order: `permute(order)` makes the array the program's argument; identity if row-major.
    """

    prepare: Callable[[torch.Tensor], torch.Tensor] | None
    order: list[int]

    @property
    def is_dense(self) -> bool:
        """Whether the argument is the tensor's own memory, and not a copy without the gaps."""
        return self.prepare is not torch.Tensor.contiguous


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


def output_layout(promised: torch.Tensor) -> OutputLayout:
    """Plan how an array becomes a tensor with the size and strides of `promised`."""
    size, stride = tuple(promised.shape), tuple(promised.stride())
    identity = list(range(len(size)))
    if 0 in size:  # strides of nothing mean nothing, and may be any: XLA's are not torch's
        return OutputLayout([], identity, False, lambda tensor: restrided(tensor, size, stride))
    if is_row_major(size, stride):
        return OutputLayout([], identity, False, None)
    unexpanded = [d for d in identity if stride[d] == 0 and size[d] > 1]
    base = [1 if d in unexpanded else n for d, n in enumerate(size)]
    order = row_major_order(base, stride)
    if order is not None:
        # as_strided gives dimensions of size 1 the promised strides as well.
        return OutputLayout(
            unexpanded, order, False, lambda tensor: restrided(tensor, size, stride)
        )
    if not overlaps(size, stride):
        return OutputLayout([], identity, False, lambda tensor: _with_strides(tensor, stride))
    return OutputLayout([], identity, True, lambda tensor: restrided(tensor, size, stride))


def restrided(
    tensor: torch.Tensor, size: Sizes, stride: Sizes, offset: int | None = None
) -> torch.Tensor:
    """as_strided that is no view: autograd would not let views of results be changed in place."""
    return tensor.as_strided(size, stride, offset).detach()


def _with_strides(tensor: torch.Tensor, stride: Sizes) -> torch.Tensor:
    return torch.empty_strided(
        tensor.shape, tuple(stride), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
