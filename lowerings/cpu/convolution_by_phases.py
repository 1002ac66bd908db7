"""Write a convolution of an image with zeros between its elements as several without zeros.

A transposed convolution is such a convolution, and so is the gradient of a strided one. With d - 1
zeros between the elements, the results at indices p, p + d, p + 2 d, ... read only every d-th
element of the window: they are a convolution by that part of the window.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.convolution_window import Pairs, Window
from xla_dynamo.lowerings.builders.cpu_thresholds import FEWEST_IN_PHASE as _FEWEST
from xla_dynamo.lowerings.builders.cpu_thresholds import MOST_PHASES


def pays(shape: Sequence[int], kernel: Value, window: Window) -> bool:
    """Whether a convolution to this shape is to be computed by phases."""
    phases = math.prod(window.image_dilation)
    ordinary = set(window.stride) <= {1} and set(window.dilation) <= {1}
    products = math.prod(shape) * build.numel_of(kernel) // shape[1]
    return ordinary and 1 < phases <= MOST_PHASES and products // phases**2 >= _FEWEST


def by_phases(
    convolve: Callable[[Value, list[int], Pairs], Value],
    image: Sequence[int],
    kernel: Value,
    shape: Sequence[int],
    window: Window,
    dtype: torch.dtype,
) -> Value:
    """The convolution, to a shape, by a kernel [_, _, *window].

    Args:
        convolve: the convolution of the image without zeros by a kernel, to a shape, with padding.
        image: the spatial sizes of the image, without zeros.
        kernel: the kernel.
        shape: of the result.
        window: how it moves over the image with zeros: by ones, over its own neighbours.
        dtype: of the result.
    """
    padding, dilation = window.padding, window.image_dilation
    lengths = [-(-n // d) for n, d in zip(shape[2:], dilation, strict=True)]
    parts = []
    for phase in itertools.product(*map(range, dilation)):
        steps = list(zip([low for low, _ in padding], phase, dilation, strict=True))
        first = [(low - p) % d for low, p, d in steps]
        before = [(low - p - k) // d for (low, p, d), k in zip(steps, first, strict=True)]
        piece = _every(kernel, first, dilation)
        seen = build.shape_of(piece)[2:]
        out = [*shape[:2], *lengths]
        if 0 in seen:  # the window is smaller than a step: zeros alone are seen
            parts.append(build.full(out, 0, dtype))
            continue
        sizes = zip(lengths, seen, before, image, strict=True)
        pads = [(b, t + k - 1 - b - n) for t, k, b, n in sizes]
        parts.append(convolve(piece, out, pads))
    return _interleaved(parts, shape, dilation)


def _every(kernel: Value, first: Sequence[int], step: Sequence[int]) -> Value:
    """Every d-th element of the window, from the given ones on."""
    sizes = build.shape_of(kernel)
    start = [min(k, n) for k, n in zip(first, sizes[2:], strict=True)]
    return build.slice_(kernel, [0, 0, *start], sizes, [1, 1, *step])


def _interleaved(parts: list[Value], shape: Sequence[int], dilation: Sequence[int]) -> Value:
    """The phases, in the order of `itertools.product`, one after the other along each dimension."""
    for dim in reversed(range(2, len(shape))):
        step = dilation[dim - 2]
        parts = [
            _alternating(parts[i : i + step], dim) if step > 1 else parts[i]
            for i in range(0, len(parts), step)
        ]
    (whole,) = parts
    return build.slice_(whole, [0] * len(shape), shape)


def _alternating(parts: Sequence[Value], dim: int) -> Value:
    """Element 0 of each part, element 1 of each, ..."""
    shape = list(build.shape_of(parts[0]))
    stacked = build.concatenate([build.expand_dims(part, dim + 1) for part in parts], dim + 1)
    shape[dim] *= len(parts)
    return build.reshape(stacked, shape)
