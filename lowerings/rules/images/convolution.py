"""Convolutions of one to three dimensions, transposed ones, and their gradients."""

from collections.abc import Sequence

import numpy as np
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.convolution_window import Pairs, Window
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.cpu import convolution_by_phases as phases
from xla_dynamo.lowerings.cpu import convolution_on_cpu as on_cpu
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.table import Context, aten, lowers

# The batch and feature dimensions of an image, and the feature dimensions of a kernel: as torch
# has them, and as a gradient reads them.
_BATCH_FIRST, _FEATURES_FIRST = (0, 1), (1, 0)
_OUT_FIRST, _IN_FIRST = (0, 1), (1, 0)


@lowers(aten.convolution.default)
def convolution(
    ctx: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Value:
    window = _window(build.rank_of(x) - 2, stride, padding, dilation)
    form = forward if not transposed else input_gradient
    return form(ctx, x, weight, bias, ctx.out.shape, ctx.out.dtype, window, groups)


@lowers(aten.conv_tbc.default)
def conv_tbc(ctx: Context, x: Value, weight: Value, bias: Value, pad: int = 0) -> Value:
    """A convolution of [time, batch, channel] by a kernel [window, in, out]."""
    time, batch, features = ctx.out.shape
    image, kernel = build.transpose(x, [1, 2, 0]), build.transpose(weight, [2, 1, 0])
    shape, window = [batch, features, time], _window(1, [1], [pad], [1])
    y = forward(ctx, image, kernel, bias, shape, ctx.out.dtype, window, 1)
    return build.transpose(y, [2, 0, 1])


@lowers(aten.convolution_backward.default)
def convolution_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    weight: Value,
    bias_sizes: list[int] | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    rank = build.rank_of(x) - 2
    window = _window(rank, stride, padding, dilation)
    dtype = build.dtype_of(x)
    grads: list[Value | None] = [None, None, None]
    if output_mask[0]:
        form = forward if transposed else input_gradient
        grads[0] = form(ctx, grad, weight, None, build.shape_of(x), dtype, window, groups)
    if output_mask[1]:
        # In a transposed convolution image and gradient are exchanged.
        image, seen = (grad, x) if transposed else (x, grad)
        grads[1] = weight_gradient(ctx, image, seen, build.shape_of(weight), window, groups)
    if output_mask[2]:
        wide = build.cast(grad, computed_in(grad))
        grads[2] = build.reduce(wide, [0, *range(2, rank + 2)], "sum")
    return tuple(None if g is None else build.cast(g, dtype) for g in grads)


def forward(
    ctx: Context,
    x: Value,
    weight: Value,
    bias: Value | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    window: Window,
    groups: int,
) -> Value:
    """Sum x[n, c, i * stride + k * dilation - padding] * w[o, c, k] over c and k: out[n, o, i]."""
    pads = []
    sizes = (build.shape_of(x)[2:], build.shape_of(weight)[2:], shape[2:])
    for n, k, o, s, (low, high), d in zip(*sizes, *window[:3], strict=True):
        reach = (k - 1) * d + 1
        fits = (n + low + high - reach) // s + 1
        # In the gradient of a transposed convolution, output_padding may make room for more.
        pads.append((low, high if fits == o else (o - 1) * s + reach - n - low))
    window = window._replace(padding=pads)
    return _convolve(ctx, x, weight, bias, shape, dtype, window, groups)


def input_gradient(
    ctx: Context,
    grad: Value,
    weight: Value,
    bias: Value | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    window: Window,
    groups: int,
) -> Value:
    """The transpose of `forward` in x: a transposed convolution of grad to the given shape."""
    kernel, inner = build.shape_of(weight)[2:], build.shape_of(grad)[2:]
    spatial = zip(kernel, shape[2:], inner, *window[:3], strict=True)
    pads = [(d * (k - 1) - p, o - (n - 1) * s - 1 + p) for k, o, n, s, (p, _), d in spatial]
    flipped = hlo.reverse(weight, list(range(2, build.rank_of(weight)))) if kernel else weight
    # [groups * a, b, ...] to [a, groups * b, ...]: now the groups divide the output features.
    split = [groups, build.shape_of(weight)[0] // groups, *build.shape_of(weight)[1:]]
    turned = build.transpose(build.reshape(flipped, split), [1, 0, *range(2, len(split))])
    weight = build.reshape(turned, [split[1], groups * split[2], *split[3:]])
    turn = Window([1] * len(inner), pads, window.dilation, image_dilation=window.stride)
    return _convolve(ctx, grad, weight, bias, shape, dtype, turn, groups, _IN_FIRST)


def weight_gradient(
    ctx: Context,
    x: Value,
    grad: Value,
    shape: Sequence[int],
    window: Window,
    groups: int,
) -> Value:
    """The transpose of `forward` in the weight: x is convolved with grad, summed over images."""
    dtype = _computed_in(ctx, x)
    if ctx.platform == "cpu" and 0 not in (*build.shape_of(x), *build.shape_of(grad)):
        if groups == 1 and on_cpu.is_pointwise(shape[2:], window):
            return on_cpu.pointwise_weights(ctx, x, grad, shape, window.stride, dtype)
        if groups == 1 and on_cpu.is_patchwise(shape[2:], window):
            return on_cpu.patchwise_weights(ctx, x, grad, shape, dtype)
        found = call(ctx, "weight_gradient", x, grad, shape=shape, window=window, groups=groups)
        if found is not None:
            return found
        if on_cpu.is_depthwise(build.shape_of(x)[1], shape[0], groups, shape[2:]):
            return on_cpu.depthwise_weights(x, grad, shape, window, dtype)
    spatial = zip(
        shape[2:], build.shape_of(grad)[2:], build.shape_of(x)[2:], *window[:3], strict=True
    )
    pads = [(p, (k - 1) * d + (g - 1) * s + 1 - n - p) for k, g, n, s, (p, _), d in spatial]
    over = Window(window.dilation, pads, window.stride, window.image_dilation)
    numbers = _dimensions(len(shape), _FEATURES_FIRST, _IN_FIRST, _FEATURES_FIRST)
    return _by_xla(x, grad, shape, dtype, over, numbers, batch_groups=groups)


def _convolve(
    ctx: Context,
    x: Value,
    kernel: Value,
    bias: Value | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    window: Window,
    groups: int,
    kernel_dims: tuple[int, int] = _OUT_FIRST,
) -> Value:
    """A convolution to a shape and dtype; `kernel_dims` are the kernel's (out, in)."""
    if ctx.platform == "cpu":
        for image, its_window in (on_cpu.without_pad(x, window), (x, window)):
            settings = {"window": its_window, "kernel_dims": kernel_dims, "groups": groups}
            operands = (image, kernel, bias)
            found = call(ctx, "convolution", *operands, shape=shape, dtype=dtype, **settings)
            if found is not None:
                return found
    wide = _computed_in(ctx, x)
    y = _product(ctx, x, kernel, shape, wide, window, groups, kernel_dims)
    if bias is not None:
        y = hlo.add(y, build.broadcast_in_dim(build.cast(bias, wide), build.shape_of(y), [1]))
    return build.cast(y, dtype)


def _product(
    ctx: Context,
    x: Value,
    kernel: Value,
    shape: Sequence[int],
    dtype: torch.dtype,
    window: Window,
    groups: int,
    kernel_dims: tuple[int, int],
) -> Value:
    """A convolution without bias in the form that XLA runs fastest."""
    if ctx.platform == "cpu" and 0 not in (*shape, *build.shape_of(x)):
        sizes, channels = build.shape_of(kernel), build.shape_of(x)[1]
        if on_cpu.is_depthwise(channels, sizes[kernel_dims[0]], groups, sizes[2:]):
            kernel = build.reshape(kernel, [channels, *sizes[2:]])
            return on_cpu.depthwise(x, kernel, shape, window, dtype)
        if phases.pays(shape, kernel, window):

            def convolve(part: Value, shape: list[int], padding: Pairs) -> Value:
                plain = window._replace(padding=padding, image_dilation=[1] * len(padding))
                return _convolve(ctx, x, part, None, shape, dtype, plain, groups, kernel_dims)

            image = build.shape_of(x)[2:]
            return phases.by_phases(convolve, image, kernel, shape, window, dtype)
        if groups == 1 and on_cpu.is_pointwise(sizes[2:], window):
            return on_cpu.pointwise(x, kernel, window.stride, kernel_dims, dtype)
    numbers = _dimensions(len(shape), _BATCH_FIRST, kernel_dims, _BATCH_FIRST)
    return _by_xla(x, kernel, shape, dtype, window, numbers, groups)


def _computed_in(ctx: Context, x: Value) -> torch.dtype:
    """The dtype of sums: on the CPU a half result is rounded once, after the bias."""
    return computed_in(x) if ctx.platform == "cpu" else build.dtype_of(x)


def _by_xla(
    x: Value,
    kernel: Value,
    shape: Sequence[int],
    dtype: torch.dtype,
    window: Window,
    numbers: hlo.ConvDimensionNumbers,
    feature_groups: int = 1,
    batch_groups: int = 1,
) -> Value:
    x, window = _cropped(x, window)
    padding = np.asarray(window.padding, dtype=np.int64).reshape(-1, 2)
    return hlo.convolution(
        tensor_type(list(shape), dtype),
        x,
        kernel,
        numbers,
        feature_groups,
        batch_groups,
        window_strides=list(window.stride),
        padding=ir.DenseIntElementsAttr.get(padding),
        lhs_dilation=list(window.image_dilation),
        rhs_dilation=list(window.dilation),
    )


def _cropped(x: Value, window: Window) -> tuple[Value, Window]:
    """An image without what negative padding takes away, and the padding that is left.

    XLA:CPU reads beyond the image where the padding is negative before it and positive behind it,
    as phases of a transposed convolution have it.
    """
    start, stop, padding = [0, 0], list(build.shape_of(x)), []
    for dim, ((low, high), dilation) in enumerate(
        zip(window.padding, window.image_dilation, strict=True), 2
    ):
        first = last = 0
        if dilation == 1:
            first = min(max(-low, 0), stop[dim])
            last = min(max(-high, 0), stop[dim] - first)
        start.append(first)
        stop[dim] -= last
        left = low + first, high + last
        # Where nothing is left of the image, what is taken away goes on in the padding.
        padding.append((0, sum(left)) if dilation == 1 and min(left) < 0 else left)
    if padding == list(window.padding):
        return x, window
    return build.slice_(x, start, stop), window._replace(padding=padding)


def _dimensions(
    rank: int, image: tuple[int, int], kernel: tuple[int, int], out: tuple[int, int]
) -> hlo.ConvDimensionNumbers:
    """Which dimensions of image and result are (batch, feature), and which of the kernel (out, in).

    Those of space come behind them.
    """
    spatial, (kernel_out, kernel_in) = list(range(2, rank)), kernel
    return hlo.ConvDimensionNumbers.get(
        *image, spatial, kernel_in, kernel_out, spatial, *out, spatial
    )


def _window(
    rank: int, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Window:
    """As torch has it: one number may stand for all dimensions."""
    strides, pads, dilations = (
        list(numbers) * rank if len(numbers) == 1 else list(numbers)
        for numbers in (stride, padding, dilation)
    )
    return Window(strides, [(p, p) for p in pads], dilations, image_dilation=[1] * rank)
