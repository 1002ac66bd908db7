"""How a convolution is divided among threads: whole images, or ranges of rows of the result."""

import math
from typing import NamedTuple

from xla_dynamo.kernels.onednn_convolution import OneDNNConvolution
from xla_dynamo.runtime.cpu.shares import ranges

# Multiplications below which to call other threads costs more than they do.
FEWEST_DIVIDED = 1 << 20


class Part(NamedTuple):
    """A part of a convolution, which is a convolution itself.

    Attributes:
        image: the shape of its image, [batch, channel, height, width].
        result: the shape of its result.
        low: the padding at the first rows and columns.
        high: the padding at the last ones.
        image_offset: the bytes from the whole image to its own, the channels being innermost.
        result_offset: the same for results.
    """

    image: tuple[int, ...]
    result: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    image_offset: int = 0
    result_offset: int = 0


def parts_of(form: OneDNNConvolution, threads: int) -> list[Part]:
    """The parts of a convolution for some threads, which they do in about the same time."""
    image, result = form.image, form.result
    if _is_product(form):
        # One image of all pixels, each a row.
        image, result = (
            (1, channels, batch * height * width, 1)
            for batch, channels, height, width in (image, result)
        )
    whole, itemsize = Part(image, result, form.low, form.high), form.dtypes[0].itemsize
    batch, rows = result[0], result[2]
    if math.prod(result) * math.prod(form.kernel[1:]) < FEWEST_DIVIDED:
        return [whole]
    if batch % threads == 0:
        each = batch // threads
        return [_images(whole, itemsize, first, each) for first in range(0, batch, each)]
    of_rows = ranges(rows, threads // math.gcd(batch, threads))
    return [
        _rows(_images(whole, itemsize, number, 1), form, some)
        for number in range(batch)
        for some in of_rows
    ]


def _is_product(form: OneDNNConvolution) -> bool:
    """Whether each pixel of the result is computed of one of the image, in the same order."""
    ones = [*form.kernel[2:], *form.stride]
    return ones == [1] * 4 and not any([*form.low, *form.high])


def _images(part: Part, itemsize: int, first: int, count: int) -> Part:
    """Some images of a part."""
    return part._replace(
        image=(count, *part.image[1:]),
        result=(count, *part.result[1:]),
        image_offset=first * math.prod(part.image[1:]) * itemsize,
        result_offset=first * math.prod(part.result[1:]) * itemsize,
    )


def _rows(part: Part, form: OneDNNConvolution, some: range) -> Part:
    """Some rows of the result of a part that is one image, and the rows of the image they need."""
    (_, channels, height, width), (_, out, _, columns) = part.image, part.result
    stride, padding, itemsize = form.stride[0], part.low[0], form.dtypes[0].itemsize
    reach = (form.kernel[2] - 1) * form.dilation[0] + 1
    start, stop = some.start * stride - padding, some[-1] * stride - padding + reach
    low, high = max(start, 0), min(stop, height)
    return Part(
        image=(1, channels, high - low, width),
        result=(1, out, len(some), columns),
        low=(low - start, part.low[1]),
        high=(stop - high, part.high[1]),
        image_offset=part.image_offset + low * width * channels * itemsize,
        result_offset=part.result_offset + some.start * columns * out * itemsize,
    )
