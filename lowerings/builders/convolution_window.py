"""How the window of a convolution moves over an image."""

from collections.abc import Sequence
from typing import NamedTuple

Pairs = Sequence[tuple[int, int]]


class Window(NamedTuple):
    """One entry for each spatial dimension: numbers, and pairs (low, high) for the padding.

    Between the elements of the kernel lie dilation - 1 zeros, and image_dilation - 1 between those
    of the image.
    """

    stride: Sequence[int]
    padding: Pairs
    dilation: Sequence[int]
    image_dilation: Sequence[int]
