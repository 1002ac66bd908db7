"""Activation functions that torch leaves whole: relu, gelu, elu, leaky_relu, hardtanh."""

import math

from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Number, Value, cast, compare, full_like, where
from xla_dynamo.lowerings.builders.promotion import promote, spread
from xla_dynamo.lowerings.table import Context, aten, lowers


def _positive(x: Value) -> Value:
    return compare(x, full_like(x, 0), "GT")


@lowers(aten.relu.default)
def relu(ctx: Context, x: Value) -> Value:
    """The positive part, NaN where x is.

    On the CPU by a choice: a maximum with a number counts there as an operation that costs no
    reading, so that XLA would not read the sum of a residual block, which the next convolution has
    in memory, but add up all blocks anew in each one that follows.
    """
    (x,) = promote(ctx, x)
    zero = full_like(x, 0)
    if ctx.platform == "cpu":
        return cast(where(compare(x, zero, "LE"), zero, x), ctx.out.dtype)
    return cast(hlo.maximum(x, zero), ctx.out.dtype)


@lowers(aten.gelu.default)
def gelu(ctx: Context, x: Value, approximate: str = "none") -> Value:
    (x,) = promote(ctx, x)
    if approximate == "tanh":
        cubic = hlo.multiply(hlo.multiply(x, hlo.multiply(x, x)), full_like(x, 0.044715))
        inner = hlo.multiply(hlo.add(x, cubic), full_like(x, math.sqrt(2 / math.pi)))
        weight = hlo.tanh(inner)
    else:
        weight = chlo.erf(hlo.multiply(x, full_like(x, math.sqrt(0.5))))
    half = hlo.multiply(x, full_like(x, 0.5))
    return cast(hlo.multiply(half, hlo.add(weight, full_like(x, 1))), ctx.out.dtype)


@lowers(aten.elu.default)
def elu(
    ctx: Context, x: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1
) -> Value:
    (x,) = promote(ctx, x)
    scaled = hlo.multiply(x, full_like(x, input_scale))
    below = hlo.multiply(hlo.exponential_minus_one(scaled), full_like(x, alpha * scale))
    return cast(where(_positive(x), hlo.multiply(x, full_like(x, scale)), below), ctx.out.dtype)


@lowers(aten.leaky_relu.default)
def leaky_relu(ctx: Context, x: Value, negative_slope: Number = 0.01) -> Value:
    (x,) = promote(ctx, x)
    below = hlo.multiply(x, full_like(x, negative_slope))
    return cast(where(_positive(x), x, below), ctx.out.dtype)


@lowers(aten.hardtanh.default)
def hardtanh(ctx: Context, x: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    x, low, high = spread([x, min_val, max_val], ctx.out.dtype)
    return hlo.minimum(hlo.maximum(x, low), high)
