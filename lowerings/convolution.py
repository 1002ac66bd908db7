"""Convolutions of one to three dimensions, transposed ones, and their gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings import build, onednn, torch_calls
from xla_dynamo.lowerings import convolution_by_phases as phases
from xla_dynamo.lowerings import convolution_on_cpu as on_cpu
from xla_dynamo.lowerings.build import Value
from xla_dynamo.lowerings.dtypes import tensor_type
from xla_dynamo.lowerings.promotion import computed_in
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten

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
    rank = build.rank_of(x) - 2
    stride, padding, dilation = (_per_dim(a, rank) for a in (stride, padding, dilation))
    shape = ctx.out.shape
    window = onednn.Window(stride, [(p, p) for p in padding], dilation)
    if not transposed and onednn.takes_convolution(ctx, x, weight, shape, ctx.out.dtype, window):
        return onednn.convolution(x, weight, bias, shape, ctx.out.dtype, window, groups=groups)
    form = forward if not transposed else input_gradient
    y = form(ctx, x, weight, shape, stride, padding, dilation, groups)
    if bias is not None:
        bias = build.cast(bias, build.dtype_of(y))
        y = hlo.add(y, build.broadcast_in_dim(bias, build.shape_of(y), [1]))
    return build.cast(y, ctx.out.dtype)


@lowers(aten.conv_tbc.default)
def conv_tbc(ctx: Context, x: Value, weight: Value, bias: Value, pad: int = 0) -> Value:
    """A convolution of [time, batch, channel] by a kernel [window, in, out]."""
    time, batch, features = ctx.out.shape
    image, kernel = build.transpose(x, [1, 2, 0]), build.transpose(weight, [2, 1, 0])
    y = forward(ctx, image, kernel, [batch, features, time], [1], [pad], [1], 1)
    y = build.transpose(y, [2, 0, 1])
    bias = build.broadcast_to(build.cast(bias, build.dtype_of(y)), build.shape_of(y))
    return build.cast(hlo.add(y, bias), ctx.out.dtype)


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
    window: Any = [_per_dim(a, rank) for a in (stride, padding, dilation)]
    dtype = build.dtype_of(x)
    grads: list[Value | None] = [None, None, None]
    if output_mask[0]:
        form = forward if transposed else input_gradient
        grads[0] = form(ctx, grad, weight, build.shape_of(x), *window, groups)  # type: ignore[call-arg]
    if output_mask[1]:
        # In a transposed convolution image and gradient change places.
        image, seen = (grad, x) if transposed else (x, grad)
        grads[1] = weight_gradient(ctx, image, seen, build.shape_of(weight), *window, groups)  # type: ignore[call-arg]
    if output_mask[2]:
        wide = build.cast(grad, computed_in(grad))
        grads[2] = build.reduce(wide, [0, *range(2, rank + 2)], "sum")
    return tuple(None if g is None else build.cast(g, dtype) for g in grads)


def forward(
    ctx: Context,
    x: Value,
    weight: Value,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """Sum x[n, c, i * stride + k * dilation - padding] * w[o, c, k] over c and k: out[n, o, i]."""
    pads = []
    sizes = (build.shape_of(x)[2:], build.shape_of(weight)[2:], shape[2:])
    for n, k, o, s, p, d in zip(*sizes, stride, padding, dilation, strict=True):
        reach = (k - 1) * d + 1
        fits = (n + 2 * p - reach) // s + 1
        # In the gradient of a transposed convolution, output_padding may make room for more.
        pads.append((p, p if fits == o else (o - 1) * s + reach - n - p))
    return _convolve(
        ctx, x, weight, shape, stride, pads, [1] * len(pads), dilation, feature_groups=groups
    )


def input_gradient(
    ctx: Context,
    grad: Value,
    weight: Value,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """The transpose of `forward` in x: a transposed convolution of grad to the given shape."""
    kernel, out, inner = build.shape_of(weight)[2:], shape[2:], build.shape_of(grad)[2:]
    low = [d * (k - 1) - p for k, p, d in zip(kernel, padding, dilation, strict=True)]
    high = [o - (n - 1) * s - 1 + p for o, n, s, p in zip(out, inner, stride, padding, strict=True)]
    flipped = hlo.reverse(weight, list(range(2, build.rank_of(weight)))) if kernel else weight
    # [groups * a, b, ...] to [a, groups * b, ...]: now the groups divide the output features.
    split = [groups, build.shape_of(weight)[0] // groups, *build.shape_of(weight)[1:]]
    turned = build.transpose(build.reshape(flipped, split), [1, 0, *range(2, len(split))])
    weight = build.reshape(turned, [split[1], groups * split[2], *split[3:]])
    return _convolve(
        ctx,
        grad,
        weight,
        shape,
        [1] * len(out),
        list(zip(low, high, strict=True)),
        stride,
        dilation,
        kernel_dims=_IN_FIRST,
        feature_groups=groups,
    )


def weight_gradient(
    ctx: Context,
    x: Value,
    grad: Value,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """The transpose of `forward` in the weight: x is convolved with grad, summed over images."""
    if ctx.platform == "cpu" and 0 not in (*build.shape_of(x), *build.shape_of(grad)):
        dtype, channels = computed_in(x), build.shape_of(x)[1]
        window = (stride, padding, dilation)
        if groups == 1 and on_cpu.is_pointwise(shape[2:], [(p, p) for p in padding], [1]):
            return on_cpu.pointwise_weights(ctx, x, grad, shape, stride, dtype)
        if torch_calls.takes_weight_gradient(ctx, x, grad, shape, *window):
            return torch_calls.weight_gradient(ctx, x, grad, shape, *window, groups)
        if on_cpu.is_depthwise(channels, shape[0], groups, shape[2:]):
            return on_cpu.depthwise_weights(x, grad, shape, *window, dtype)
    spatial = zip(
        shape[2:],
        build.shape_of(grad)[2:],
        build.shape_of(x)[2:],
        stride,
        padding,
        dilation,
        strict=True,
    )
    pads = [(p, (k - 1) * d + (g - 1) * s + 1 - n - p) for k, g, n, s, p, d in spatial]
    return _convolve(
        ctx,
        x,
        grad,
        shape,
        dilation,
        pads,
        [1] * len(pads),
        stride,
        image_dims=_FEATURES_FIRST,
        kernel_dims=_IN_FIRST,
        out_dims=_FEATURES_FIRST,
        batch_groups=groups,
    )


def _convolve(
    ctx: Context,
    x: Value,
    kernel: Value,
    shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    image_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
    *,
    image_dims: tuple[int, int] = _BATCH_FIRST,
    kernel_dims: tuple[int, int] = _OUT_FIRST,
    out_dims: tuple[int, int] = _BATCH_FIRST,
    feature_groups: int = 1,
    batch_groups: int = 1,
) -> Value:
    """stablehlo.convolution, with pairs that say which dims are (batch, feature), (out, in)."""
    spatial = list(range(2, len(shape)))
    dtype = build.dtype_of(x)
    if ctx.platform == "cpu":
        dtype = computed_in(x)  # a half result is rounded once, after the bias
        ordinary = set(image_dilation) <= {1} and batch_groups == 1
        moves = onednn.Window(stride, padding, kernel_dilation)
        if (
            ordinary
            and image_dims == out_dims == _BATCH_FIRST
            and onednn.takes_convolution(ctx, x, kernel, shape, dtype, moves, kernel_dims)
        ):
            return onednn.convolution(
                x,
                kernel,
                None,
                shape,
                dtype,
                moves,
                kernel_dims=kernel_dims,
                groups=feature_groups,
            )
        window = build.shape_of(kernel)[2:]
        features = build.shape_of(kernel)[kernel_dims[0]]
        plain = 0 not in shape and 0 not in build.shape_of(x) and batch_groups == 1
        channels = build.shape_of(x)[image_dims[1]]
        if plain and on_cpu.is_depthwise(channels, features, feature_groups, window):
            kernel = build.reshape(kernel, [channels, *window])
            return on_cpu.depthwise(
                x, kernel, shape, stride, padding, image_dilation, kernel_dilation, dtype
            )
        in_place = image_dims == out_dims == _BATCH_FIRST
        if (
            plain
            and in_place
            and phases.pays(shape, kernel, image_dilation, stride, kernel_dilation)
        ):
            ones = [1] * len(spatial)

            def convolve(part: Value, shape: list[int], padding: phases.Padding) -> Value:
                moves = (ones, padding, ones, ones)
                return _convolve(
                    ctx,
                    x,
                    part,
                    shape,
                    *moves,
                    kernel_dims=kernel_dims,
                    feature_groups=feature_groups,
                )

            image = build.shape_of(x)[2:]
            return phases.by_phases(convolve, image, kernel, shape, padding, image_dilation, dtype)
        in_place = in_place and feature_groups == 1
        if plain and in_place and on_cpu.is_pointwise(window, padding, image_dilation):
            return on_cpu.pointwise(x, kernel, stride, kernel_dims, dtype)
    numbers = hlo.ConvDimensionNumbers.get(
        image_dims[0],
        image_dims[1],
        spatial,
        kernel_dims[1],
        kernel_dims[0],
        spatial,
        out_dims[0],
        out_dims[1],
        spatial,
    )
    return hlo.convolution(
        tensor_type(list(shape), dtype),
        x,
        kernel,
        numbers,
        feature_groups,
        batch_groups,
        window_strides=list(stride),
        padding=ir.DenseIntElementsAttr.get(np.asarray(padding, dtype=np.int64).reshape(-1, 2)),
        lhs_dilation=list(image_dilation),
        rhs_dilation=list(kernel_dilation),
    )


def _per_dim(numbers: Sequence[int], rank: int) -> list[int]:
    """One number a dimension; torch lets one stand for all."""
    return list(numbers) * rank if len(numbers) == 1 else list(numbers)
