"""The geometry of strided tensors: how sizes and strides lay elements out in memory."""

import math
from collections.abc import Sequence

Sizes = Sequence[int]


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


def row_major(size: Sizes) -> tuple[int, ...]:
    """The strides of a dense row-major tensor."""
    return tuple(math.prod(size[dim + 1 :]) for dim in range(len(size)))


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
    for index, dim in enumerate(permutation):
        result[dim] = index
    return result


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


def channels_last(rank: int) -> list[int]:
    """The dimensions of an image from the outermost in memory to the innermost, the channels."""
    return [0, *range(2, rank), 1]
