"""Write a convolution in forms that XLA:CPU runs faster than its own convolution."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.convolution_window import Pairs, Window
from xla_dynamo.lowerings.builders.cpu_thresholds import MOST_SHIFTED_PRODUCTS
from xla_dynamo.lowerings.builders.strides import channels_last
from xla_dynamo.lowerings.builders.values import defining_name, number_of
from xla_dynamo.lowerings.cpu.products import product
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN


def without_pad(x: Value, window: Window) -> tuple[Value, Window]:
    """The image that x is with zeros around it, and the window that adds them; else x and window.

    Models whose weights come from TensorFlow have such images: torch's window has as many zeros on
    both sides. (A weight that is infinite meets those of the image, and not those of the window.)
    """
    if defining_name(x) != "stablehlo.pad" or set(window.image_dilation) != {1}:
        return x, window
    low, high, inner = (
        list(ir.DenseI64ArrayAttr(x.owner.attributes[name]))
        for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    image, value = x.owner.operands
    if any(inner) or any([*low[:2], *high[:2]]) or min(*low, *high) < 0 or number_of(value) != 0:
        return x, window
    pairs = zip(window.padding, low[2:], high[2:], strict=True)
    return image, window._replace(padding=[(a + b, c + d) for (a, c), b, d in pairs])


def is_depthwise(channels: int, features: int, groups: int, kernel: Sequence[int]) -> bool:
    """Whether each channel is convolved with one kernel of its own, of few elements."""
    return groups == channels == features > 1 and math.prod(kernel) <= MOST_SHIFTED_PRODUCTS


def depthwise(
    x: Value,
    kernel: Value,
    shape: Sequence[int],
    window: Window,
    dtype: torch.dtype,
) -> Value:
    """A depthwise convolution to the given shape, as a sum of shifted products.

    x is [n, c, *spatial] and kernel [c, *window].
    """
    x, kernel = build.cast(x, dtype), build.cast(kernel, dtype)
    padded = _padded(x, window.padding, window.image_dilation)
    products = [
        hlo.multiply(part, build.broadcast_in_dim(_element(kernel, offset), shape, [1]))
        for offset, part in _shifts(
            padded, build.shape_of(kernel)[1:], shape[2:], window.stride, window.dilation
        )
    ]
    return functools.reduce(hlo.add, products)


def depthwise_weights(
    x: Value,
    grad: Value,
    shape: Sequence[int],
    window: Window,
    dtype: torch.dtype,
) -> Value:
    """The weight gradient of a depthwise convolution: one fused sum an element of the window."""
    x, grad = build.cast(x, dtype), build.cast(grad, dtype)
    out = build.shape_of(grad)[2:]
    spatial = zip(build.shape_of(x)[2:], out, shape[2:], *window[:3], strict=True)
    pads = [(p, max((o - 1) * s + (k - 1) * d + 1 - n - p, 0)) for n, o, k, s, (p, _), d in spatial]
    padded = _padded(x, pads, window.image_dilation)
    over = [0, *range(2, build.rank_of(x))]
    sums = [
        build.expand_dims(build.reduce(hlo.multiply(part, grad), over, "sum"), 1)
        for _, part in _shifts(padded, shape[2:], out, window.stride, window.dilation)
    ]
    return build.reshape(build.concatenate(sums, 1), shape)


def is_pointwise(kernel: Sequence[int], window: Window) -> bool:
    """Whether the window is one element and every image element stands for itself."""
    plain = not any(map(any, window.padding)) and set(window.image_dilation) <= {1}
    return plain and all(k == 1 for k in kernel)


def pointwise(
    x: Value,
    kernel: Value,
    stride: Sequence[int],
    kernel_dims: tuple[int, int],
    dtype: torch.dtype,
) -> Value:
    """A convolution by a window of one element, as a matrix product with channels last."""
    rank = build.rank_of(x)
    weight = build.reshape(kernel, build.shape_of(kernel)[:2])
    product = build.dot_general(_strided(x, stride), weight, ([1], [kernel_dims[1]]), dtype=dtype)
    return build.transpose(product, [0, rank - 1, *range(1, rank - 1)])


def pointwise_weights(
    ctx: Context,
    x: Value,
    grad: Value,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
) -> Value:
    """The weight gradient of a convolution by a window of one element."""
    seen = _strided(x, stride)
    sizes = [*build.shape_of(x)[:2], *build.shape_of(grad)[2:]]
    seen = build.slice_(seen, [0] * build.rank_of(x), sizes)
    over = [0, *range(2, build.rank_of(x))]
    if ONEDNN in ctx.libraries:  # as images of its convolutions lie in memory
        weights = product(ctx, _rows(grad), _rows(seen), dtype, transpose_x=True)
        return build.reshape(weights, shape)
    return build.reshape(build.dot_general(grad, seen, (over, over), dtype=dtype), shape)


def is_patchwise(kernel: Sequence[int], window: Window) -> bool:
    """Whether each element of an image stands in one window at most, as where it is cut up."""
    plain = not any(map(any, window.padding)) and {*window.image_dilation, *window.dilation} <= {1}
    return plain and list(kernel) == list(window.stride)


def patchwise_weights(
    ctx: Context, x: Value, grad: Value, shape: Sequence[int], dtype: torch.dtype
) -> Value:
    """The weight gradient of a convolution whose windows cut up the image: a product of patches."""
    counts, window = build.shape_of(grad)[2:], shape[2:]
    batch, channels = build.shape_of(x)[:2]
    sizes = [n * k for n, k in zip(counts, window, strict=True)]
    seen = build.slice_(x, [0] * build.rank_of(x), [batch, channels, *sizes])
    both = itertools.chain(*zip(counts, window, strict=True))
    parts = build.reshape(seen, [batch, channels, *both])
    rank = len(counts)
    places, inside = (list(range(first, 2 + 2 * rank, 2)) for first in (2, 3))
    patches = build.transpose(parts, [0, *places, 1, *inside])
    patches = build.reshape(patches, [batch * math.prod(counts), math.prod(shape[1:])])
    weights = product(ctx, _rows(grad), patches, dtype, transpose_x=True)
    return build.reshape(weights, shape)


def _rows(x: Value) -> Value:
    """[batch * places, channels]."""
    last = build.transpose(x, channels_last(build.rank_of(x)))
    channels = build.shape_of(x)[1]
    return build.reshape(last, [build.numel_of(x) // channels, channels])


def _strided(x: Value, stride: Sequence[int]) -> Value:
    return build.slice_(x, [0] * build.rank_of(x), build.shape_of(x), [1, 1, *stride])


def _padded(x: Value, padding: Pairs, dilation: Sequence[int]) -> Value:
    low, high = ([0, 0, *side] for side in zip(*padding, strict=True))
    return build.pad(x, 0, low, high, [0, 0, *[d - 1 for d in dilation]])


def _shifts(
    padded: Value,
    window: Sequence[int],
    out: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
) -> Iterator[tuple[tuple[int, ...], Value]]:
    """Each place in the window, and the elements that stand there for every result."""
    lead = list(build.shape_of(padded)[:2])
    for offset in itertools.product(*map(range, window)):
        start = [i * d for i, d in zip(offset, dilation, strict=True)]
        stop = [b + (o - 1) * s + 1 for b, o, s in zip(start, out, stride, strict=True)]
        yield offset, build.slice_(padded, [0, 0, *start], [*lead, *stop], [1, 1, *stride])


def _element(kernel: Value, offset: Sequence[int]) -> Value:
    """The numbers of one place of the window, one a channel."""
    channels = build.shape_of(kernel)[0]
    element = build.slice_(kernel, [0, *offset], [channels, *[i + 1 for i in offset]])
    return build.reshape(element, [channels])
