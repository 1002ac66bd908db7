"""Calls of torch's own kernels from inside a program for the CPU (`runtime.cpu.torch_kernels`).

A program calls torch where no composition of XLA's operations is nearly as fast: fused attention,
whose scores never leave the cache; products of groups of rows; and weight gradients of
convolutions, which oneDNN has and XLA does not call.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.convolution_window import Window
from xla_dynamo.lowerings.builders.cpu_thresholds import (
    FEWEST_IN_ATTENTION,
    FEWEST_IN_GROUPS,
    FEWEST_IN_WEIGHT_GRADIENT,
    LARGEST_WEIGHT,
    MOST_KEYS_IN_BFLOAT16,
    MOST_PARTS,
)
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.strides import channels_last
from xla_dynamo.lowerings.builders.values import defining_name, source_of
from xla_dynamo.lowerings.cpu.library_calls import (
    ONEDNN,
    ONEDNN_BFLOAT16,
    TORCH,
    library_call,
)
from xla_dynamo.lowerings.table import Context
from xla_dynamo.torch_private import invert_perm

# The handler's name, as `runtime.cpu.foreign_calls` registers it.
TARGET = "xla_dynamo.call"
# Heads behind the lengths, as a linear layer leaves them, and sums likewise.
_HEADS_LAST, _SUMS = [0, 2, 1, 3], [0, 2, 1]


def takes_attention(ctx: Context, query: Value, key: Value, value: Value, mask: Any) -> bool:
    """Whether `attention` is to compute it."""
    dtypes = {build.dtype_of(x) for x in (query, key, value)}
    if TORCH not in ctx.libraries or len(dtypes) > 1:
        return False
    (dtype,) = dtypes
    if dtype not in (torch.float32, torch.bfloat16):
        return False
    if mask is not None and build.dtype_of(mask) not in (dtype, torch.float32):
        return False
    keys = build.shape_of(key)[2]
    is_short = dtype is torch.bfloat16 and keys <= MOST_KEYS_IN_BFLOAT16
    if is_short and ONEDNN_BFLOAT16 in ctx.libraries and not ctx.trains:
        return False
    return build.numel_of(query) * keys >= FEWEST_IN_ATTENTION


def attention(
    ctx: Context,
    inputs: Sequence[Value],
    mask: Value | None,
    is_causal: bool,
    scale: float | None,
) -> list[Value]:
    """Of query, key and value: the output, like the query, and the logarithms of the sums."""
    query, _, value = inputs
    batch, heads, length, _ = build.shape_of(query)
    output = tensor_type([batch, heads, length, build.shape_of(value)[3]], build.dtype_of(query))
    sums = tensor_type([batch, heads, length], torch.float32)
    config, more = _attention_config(inputs, mask, is_causal, scale)
    operands, orders = [*inputs, *more], _orders(inputs, more)
    return _call(ctx, "attention", config, operands, orders, [output, sums], [_HEADS_LAST, _SUMS])


def attention_gradients(
    ctx: Context,
    grad: Value,
    inputs: Sequence[Value],
    results: Sequence[Value],
    mask: Value | None,
    is_causal: bool,
    scale: float | None,
) -> list[Value]:
    """The gradients of query, key and value, from that of the output and from both results."""
    config, more = _attention_config(inputs, mask, is_causal, scale)
    given = [grad, *inputs, *results]
    operands, orders, types = [*given, *more], _orders(given, more), [x.type for x in inputs]
    return _call(ctx, "attention_gradients", config, operands, orders, types, [_HEADS_LAST] * 3)


def _orders(values: Sequence[Value], masks: Sequence[Value]) -> list[Sequence[int]]:
    """The orders of the dimensions in memory."""
    lasts = [_HEADS_LAST if build.rank_of(x) == 4 else _SUMS for x in values]
    return [*lasts, *(range(4) for _ in masks)]


def _attention_config(
    inputs: Sequence[Value], mask: Value | None, is_causal: bool, scale: float | None
) -> tuple[dict[str, Any], list[Value]]:
    """The kernels' settings, and the mask, if there is one, in the form that they take."""
    more = [] if mask is None else [_compact(mask)]
    shapes = [list(build.shape_of(x)) for x in (*inputs, *more)]
    dtypes = [str(build.dtype_of(x)).removeprefix("torch.") for x in (inputs[0], *more)]
    config = {
        **dict(zip(("query", "key", "value", "mask"), [*shapes, None][:4], strict=True)),
        "dtypes": [dtypes[0], dtypes[-1]],
        "causal": is_causal,
        "scale": scale,
    }
    return config, more


def _compact(mask: Value) -> Value:
    """A mask of four dimensions, of size 1 where it was broadcast: torch's kernel does it again."""
    shape = list(build.shape_of(mask))
    if defining_name(mask) == "stablehlo.broadcast_in_dim":
        op = mask.owner
        (source,) = op.operands
        dims = [int(d) for d in ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])]
        own = dict(zip(dims, build.shape_of(source), strict=True))
        mask, shape = source, [own.get(d, 1) for d in range(len(shape))]
    return build.reshape(mask, [1] * (4 - len(shape)) + shape)


def takes_weight_gradient(
    ctx: Context,
    x: Value,
    grad: Value,
    shape: Sequence[int],
    window: Window,
) -> bool:
    """Whether `weight_gradient` is to compute a kernel's gradient of this shape."""
    library = {torch.float32: ONEDNN, torch.bfloat16: ONEDNN_BFLOAT16}.get(build.dtype_of(x))
    sizes = [*shape, *build.shape_of(x), *build.shape_of(grad)]
    if not {TORCH, library} <= ctx.libraries or 0 in sizes or not 3 <= len(shape) <= 5:
        return False
    spatial = zip(build.shape_of(x)[2:], shape[2:], *window[:3], strict=True)
    out = [(n + low + high - (k - 1) * d - 1) // s + 1 for n, k, s, (low, high), d in spatial]
    if tuple(out) != tuple(build.shape_of(grad)[2:]):
        return False  # of a transposed convolution whose output_padding made room for more
    ends = zip(build.shape_of(x)[2:], out, window.stride, strict=True)
    if library == ONEDNN_BFLOAT16 and any(s > 1 and 1 in (n, o) for n, o, s in ends):
        return False  # oneDNN (3.x) reads beyond such an image
    elements = build.numel_of(grad)
    if math.prod(shape) > LARGEST_WEIGHT * elements:
        return False
    return elements * math.prod(shape[1:]) >= FEWEST_IN_WEIGHT_GRADIENT


def weight_gradient(
    ctx: Context,
    x: Value,
    grad: Value,
    shape: Sequence[int],
    window: Window,
    groups: int,
) -> Value:
    """A convolution's gradient in its kernel [out, in / groups, *window].

    Its padding is as low as it is high.
    """
    elements = build.numel_of(grad) // math.prod(shape)
    most = MOST_PARTS if build.dtype_of(x) is torch.float32 else 1  # each result is rounded
    parts = max(min(build.shape_of(x)[0], elements, most), 1)
    config = {
        "parts": parts,
        "image": list(build.shape_of(x)),
        "grad": list(build.shape_of(grad)),
        "kernel": list(shape),
        "window": [window.stride, [low for low, _ in window.padding], window.dilation],
        "groups": groups,
        "dtype": str(build.dtype_of(x)).removeprefix("torch."),
    }
    types = [tensor_type([*([parts] if parts > 1 else []), *shape], build.dtype_of(x))]
    order, whole = channels_last(len(shape)), [list(range(types[0].rank))]
    (result,) = _call(ctx, "weight_gradient", config, [x, grad], [order] * 2, types, whole)
    return build.reduce(result, [0], "sum") if parts > 1 else result


def takes_groups(ctx: Context, x: Value, matrices: Value) -> bool:
    """Whether products of groups are to be calls, which XLA makes of all rows with all matrices."""
    if TORCH not in ctx.libraries or build.dtype_of(x) is not build.dtype_of(matrices):
        return False
    products = build.shape_of(x)[0] * build.numel_of(matrices)
    return build.dtype_of(x).is_floating_point and products >= FEWEST_IN_GROUPS


def grouped_product(ctx: Context, x: Value, matrices: Value, ends: Value) -> Value:
    """Each of the sorted rows [rows, inner] times its group's matrix [groups, inner, columns]."""
    columns, order = build.shape_of(matrices)[2], _order_of(matrices)
    config = _groups_config(x, columns, ends, order)
    types = [tensor_type([build.shape_of(x)[0], columns], build.dtype_of(x))]
    operands, orders = [x, matrices, ends], [[0, 1], order, [0]]
    (result,) = _call(ctx, "grouped_product", config, operands, orders, types, [[0, 1]])
    return result


def grouped_outer_product(ctx: Context, x: Value, y: Value, ends: Value) -> Value:
    """For each group the product of its rows x.T @ y: [groups, inner, columns]."""
    inner, columns = build.shape_of(x)[1], build.shape_of(y)[1]
    config = _groups_config(x, columns, ends, [0, 1, 2])
    types = [tensor_type([config["groups"], inner, columns], build.dtype_of(x))]
    operands, orders = [x, y, ends], [[0, 1], [0, 1], [0]]
    (result,) = _call(ctx, "grouped_outer_product", config, operands, orders, types, [[0, 1, 2]])
    return result


def _groups_config(x: Value, columns: int, ends: Value, order: Sequence[int]) -> dict[str, Any]:
    rows, inner = build.shape_of(x)
    return {
        "rows": rows,
        "inner": inner,
        "columns": columns,
        "groups": build.shape_of(ends)[0],
        "order": list(order),
        "dtype": str(build.dtype_of(x)).removeprefix("torch."),
        "ends_dtype": str(build.dtype_of(ends)).removeprefix("torch."),
    }


def _order_of(matrices: Value) -> list[int]:
    """How matrices lie in memory: a transpose before them is none then."""
    return invert_perm(source_of(matrices)[1])


def _call(
    ctx: Context,
    name: str,
    config: dict[str, Any],
    operands: Sequence[Value],
    orders: Sequence[Sequence[int]],
    types: Sequence[ir.Type],
    result_orders: Sequence[Sequence[int]],
) -> list[Value]:
    """A call of a kernel, whose operands and results have their dimensions in these orders."""
    ctx.calls.add(name)
    text = ir.DictAttr.get({"kernel": ir.StringAttr.get(f"{name}:{json.dumps(config)}")})
    typed = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 4)  # FFI, and not what came before
    return library_call(TARGET, text, operands, orders, types, result_orders, api_version=typed)
