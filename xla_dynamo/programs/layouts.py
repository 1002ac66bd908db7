"""Layouts, as data: how strided torch tensors become row-major arrays of XLA, and back.

XLA programs here take and return dense row-major arrays. A dense tensor with another permutation
(channels_last, a transposed weight) crosses as its row-major permutation, without a copy. The
program permutes it back, and XLA folds the transpose into the operation that reads it.
"""

import dataclasses

import torch

from xla_dynamo.lowerings.builders.strides import Sizes, is_row_major, overlaps, row_major_order


@dataclasses.dataclass(frozen=True, slots=True)
class InputLayout:
    """How a tensor enters a program.

    Attributes:
        permutation: `permute(permutation)` makes the array the program's argument.
        is_dense: whether that array is the tensor's own memory; else it is made by `contiguous()`.
    """

    permutation: tuple[int, ...]
    is_dense: bool = True

    @property
    def is_row_major(self) -> bool:
        """Whether the tensor goes in as it is."""
        return self.is_dense and self.permutation == tuple(range(len(self.permutation)))


def input_layout(example: torch.Tensor) -> InputLayout:
    """Plan how tensors with the strides of `example` enter a program."""
    return layout_of(example.shape, example.stride())


def layout_of(size: Sizes, stride: Sizes) -> InputLayout:
    """Plan how tensors of a size and strides enter a program."""
    permutation = row_major_order(size, stride)
    if permutation is None:
        return InputLayout(tuple(range(len(size))), is_dense=False)
    return InputLayout(tuple(permutation))


@dataclasses.dataclass(frozen=True, slots=True)
class Restride:
    """The size and strides of eager, which an exported tensor still has to get.

    Attributes:
        size: the tensor's size.
        stride: its strides.
        copies: whether the elements must be copied, because they are permuted or have gaps.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    copies: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class OutputLayout:
    """How a program's array becomes a tensor with the strides that eager would give.

    Attributes:
        unexpanded: dimensions of stride 0, which the program returns with size 1.
        permutation: the program returns `unexpanded.permute(permutation)`, which is row-major.
        restride: run on the exported tensor; None where it comes out as it is.
        overlapping: the tensor's elements share memory: the program returns flat storage.
    """

    unexpanded: tuple[int, ...]
    permutation: tuple[int, ...]
    restride: Restride | None = None
    overlapping: bool = False


def output_layout(promised: torch.Tensor) -> OutputLayout:
    """Plan how an array becomes a tensor with the size and strides of `promised`."""
    size, stride = tuple(promised.shape), tuple(promised.stride())
    identity = tuple(range(len(size)))
    if 0 in size:  # strides of nothing mean nothing, and may be any: XLA's are not torch's
        return OutputLayout((), identity, Restride(size, stride))
    if is_row_major(size, stride):
        return OutputLayout((), identity)
    unexpanded = tuple(d for d in identity if stride[d] == 0 and size[d] > 1)
    base = [1 if d in unexpanded else n for d, n in enumerate(size)]
    permutation = row_major_order(base, stride)
    if permutation is not None:
        # as_strided gives dimensions of size 1 the promised strides as well.
        return OutputLayout(unexpanded, tuple(permutation), Restride(size, stride))
    if not overlaps(size, stride):
        return OutputLayout((), identity, Restride(size, stride, copies=True))
    return OutputLayout((), identity, Restride(size, stride), overlapping=True)
