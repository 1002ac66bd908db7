"""Convolutions and matrix products by oneDNN, which jaxlib brings for x86 and XLA:CPU runs itself.

A custom call of XLA's own targets (xla/service/cpu/onednn_*.cc) runs in XLA's threads and writes
into XLA's memory. Its configuration is the JSON form of onednn_config.proto. A call that oneDNN
refuses ends the process, so `takes_convolution` and `takes_product` accept only calls that oneDNN
is known to take. `python -m bench.forms` measures the speed of each form.
"""

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.convolution_window import Window
from xla_dynamo.lowerings.builders.cpu_thresholds import FEWEST_IN_CONVOLUTION, FEWEST_IN_PRODUCT
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.strides import channels_last
from xla_dynamo.lowerings.builders.values import Value, dtype_of, numel_of, rank_of, shape_of
from xla_dynamo.lowerings.cpu.library_calls import (
    ONEDNN,
    ONEDNN_BFLOAT16,
    TORCH,
    library_call,
)
from xla_dynamo.lowerings.table import Context
from xla_dynamo.lowerings.target import ONEDNN_PACKED

# oneDNN counts in 32 bits.
_LARGEST = 2**31 - 1


def takes_convolution(
    ctx: Context,
    x: Value,
    kernel: Value,
    shape: Sequence[int],
    dtype: torch.dtype,
    window: Window,
    kernel_dims: tuple[int, int] = (0, 1),
) -> bool:
    """Whether `convolution` is to compute a result of this shape and dtype."""
    sizes = [*shape, *shape_of(x), *shape_of(kernel)]
    if not _has_kernels(ctx, x, dtype) or not 3 <= len(shape) <= 5 or 0 in sizes:
        return False
    if ctx.trains and TORCH not in ctx.libraries and dtype_of(x) is torch.float32:
        return False  # weight gradients are XLA's own, and have the channels elsewhere in memory
    elements = max(map(math.prod, (shape, shape_of(x), shape_of(kernel))))
    products = math.prod(shape) * numel_of(kernel) // shape[1]
    # `pack_weights` makes calls that cost little of those on images of two dimensions.
    may_pack = ONEDNN_PACKED in ctx.libraries and not ctx.trains and len(shape) == 4
    fewest = 0 if may_pack and dtype is torch.float32 else FEWEST_IN_CONVOLUTION
    if elements > _LARGEST or products < fewest or set(window.image_dilation) != {1}:
        return False
    return _is_right(x, kernel, shape, window, kernel_dims)


def _is_right(
    x: Value, kernel: Value, shape: Sequence[int], window: Window, kernel_dims: tuple[int, int]
) -> bool:
    """Whether oneDNN (3.x) gets a convolution right.

    Its kernels for bfloat16, and some for float32, read beyond the image where the result has one
    element in a strided dimension, where all that some window sees is padding, and where an image
    of three dimensions is thinner than the window. tests/lowerings/test_onednn.py has examples.

    Without AVX-512, what convolves each channel of one dimension by itself multiplies matrices in
    threads that threads of its own wait for, and XLA has one state for both: it crashes, or hangs.
    """
    if len(shape) == 3 and shape_of(kernel)[kernel_dims[1]] == 1 < shape_of(x)[1]:
        return False
    image, reaches = shape_of(x)[2:], []
    for n, k, out, stride, (low, high), dilation in zip(
        image, shape_of(kernel)[2:], shape[2:], *window[:3], strict=True
    ):
        reach = (k - 1) * dilation + 1
        reaches.append(reach)
        if not (0 <= low < reach and 0 <= high < reach) or (out == 1 and stride > 1):
            return False
        places = itertools.product(range(out), range(k))
        if not any(0 <= i * stride + j * dilation - low < n for i, j in places):
            return False
    thin = any(n < reach for n, reach in zip(image, reaches, strict=True))
    few = shape_of(kernel)[kernel_dims[1]] < 4
    return not (len(shape) == 5 and dtype_of(x) is torch.bfloat16 and (thin or few))


def convolution(
    x: Value,
    kernel: Value,
    bias: Value | None,
    shape: Sequence[int],
    dtype: torch.dtype,
    window: Window,
    *,
    kernel_dims: tuple[int, int] = (0, 1),
    groups: int = 1,
) -> Value:
    """A convolution of images [batch, channel, *spatial], with the channels innermost in memory.

    `kernel_dims` are the dimensions of the kernel that are those of output and input channels.
    """
    rank = len(shape)
    places = _numbers(range(1, rank - 1))
    image = {"data": {"batch_dim": "0", "feature_dim": str(rank - 1), "spatial_dims": places}}
    out_features, in_features = _numbers(kernel_dims)
    config = {
        "dims": str(rank),
        "feature_groups": str(groups),
        "input": image,
        "kernel": {
            "filter": {
                "input_feature_dim": in_features,
                "output_feature_dim": out_features,
                "spatial_dims": _numbers(range(2, rank)),
            }
        },
        "output": image,
        "window": {
            "pad_left": _numbers(low for low, _ in window.padding),
            "pad_right": _numbers(high for _, high in window.padding),
            "strides": _numbers(window.stride),
            "window_dilations": _numbers(window.dilation),
        },
    }
    operands, orders = [x, kernel], [channels_last(rank), list(range(rank))]
    if bias is not None:
        config["fusions"] = {"ops": ["BIAS"]}
        operands, orders = [*operands, bias], [*orders, [0]]
    return _call(
        "convolution", {"onednn_conv_config": config}, operands, orders, shape, dtype, orders[0]
    )


def takes_product(
    ctx: Context, x: Value, y: Value, dtype: torch.dtype, transpose_x: bool, transpose_y: bool
) -> bool:
    """Whether `matrix_product` is to compute x @ y in dtype."""
    if not _has_kernels(ctx, x, dtype) or not 2 <= rank_of(x) <= 5:
        return False
    stack, rows, inner, columns = _sizes(x, y, transpose_x, transpose_y)
    if dtype_of(x) is torch.float32 and not (stack or transpose_x or transpose_y):
        return False  # XLA's own are as fast, and faster for few rows
    count = math.prod(stack)
    elements = count * max(rows * inner, inner * columns, rows * columns)
    if elements > _LARGEST or 1 in (rows, columns):
        return False
    products = count * rows * inner * columns
    return products >= max(FEWEST_IN_PRODUCT[dtype_of(x)], 1)


def matrix_product(
    x: Value,
    y: Value,
    bias: Value | None,
    dtype: torch.dtype,
    transpose_x: bool = False,
    transpose_y: bool = False,
) -> Value:
    """The product [*stack, m, k] @ [*stack, k, n] in dtype, plus a bias of [n].

    Under `transpose_x` x comes as [*stack, k, m], under `transpose_y` y as [*stack, n, k]. The bias
    has their dtype.
    """
    stack, rows, _, columns = _sizes(x, y, transpose_x, transpose_y)
    shape = [*stack, rows, columns]
    config: dict[str, Any] = {"transpose_a": transpose_x, "transpose_b": transpose_y}
    operands = [x, y]
    if bias is not None:
        config["fusions"] = {"ops": ["BIAS"]}
        ones = [1] * (len(shape) - 1)
        operands.append(hlo.reshape(tensor_type([*ones, columns], dtype_of(bias)), bias))
    order = list(range(len(shape)))
    orders = [order] * len(operands)
    return _call("matmul", {"onednn_matmul_config": config}, operands, orders, shape, dtype, order)


def _sizes(
    x: Value, y: Value, transpose_x: bool, transpose_y: bool
) -> tuple[list[int], int, int, int]:
    """Of a product [*stack, m, k] @ [*stack, k, n]: the stack's sizes, m, k and n."""
    *stack, rows, inner = shape_of(x)
    if transpose_x:
        rows, inner = inner, rows
    return stack, rows, inner, shape_of(y)[-2 if transpose_y else -1]


def _has_kernels(ctx: Context, x: Value, dtype: torch.dtype) -> bool:
    """Whether there are kernels from x's dtype to this one."""
    given = dtype_of(x)
    if given is torch.float32:
        return ONEDNN in ctx.libraries and dtype is torch.float32
    narrow = given is torch.bfloat16 and dtype in (torch.bfloat16, torch.float32)
    return ONEDNN_BFLOAT16 in ctx.libraries and narrow


def _numbers(values: Any) -> list[str]:
    """Numbers as JSON has 64-bit ones in protocol buffers."""
    return [str(v) for v in values]


def _call(
    target: str,
    config: dict[str, Any],
    operands: Sequence[Value],
    orders: Sequence[Sequence[int]],
    shape: Sequence[int],
    dtype: torch.dtype,
    order: Sequence[int],
) -> Value:
    """A custom call whose operands and result have their dimensions in these orders in memory."""
    text = ir.StringAttr.get(json.dumps(config))
    types = [tensor_type(list(shape), dtype)]
    (result,) = library_call(f"__onednn${target}", text, operands, orders, types, [order])
    return result
