"""Rounding and signs: round, trunc, floor, ceil, sign, copysign, abs, neg."""

import math
from collections.abc import Callable

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Value, cast, compare, dtype_of, full_like, where
from xla_dynamo.lowerings.builders.promotion import KIND, pointwise, promote
from xla_dynamo.lowerings.rules.elementwise.comparisons import is_inf, sign_bit
from xla_dynamo.lowerings.table import Context, aten, lowers


def _of_floats(build: Callable[[Value], Value]) -> Callable[[Value], Value]:
    """Leave whole numbers as they are: StableHLO's rounding is for floats only."""

    def rounded(x: Value) -> Value:
        return build(x) if dtype_of(x).is_floating_point else x

    return rounded


@_of_floats
def truncate(x: Value) -> Value:
    """Round toward zero, keeping -0.0."""
    return where(compare(x, full_like(x, 0), "LT"), hlo.ceil(x), hlo.floor(x))


def sign(x: Value) -> Value:
    """-1, 0 or 1; torch's sign of NaN is 0."""
    dtype = dtype_of(x)
    if dtype is torch.bool:
        return x
    if not dtype.is_floating_point and not dtype.is_signed:
        return cast(compare(x, full_like(x, 0), "NE"), dtype)
    if not dtype.is_floating_point:
        return hlo.sign(x)
    return where(compare(x, x, "EQ"), hlo.sign(x), full_like(x, 0))


def absolute(x: Value) -> Value:
    """|x|; the magnitude, a real number, for a complex x."""
    dtype = dtype_of(x)
    if not dtype.is_complex:
        return hlo.abs(x) if dtype.is_signed else x
    size = hlo.abs(x)  # NaN beside an infinite part, where torch says infinite
    return where(is_inf(x), full_like(size, math.inf), size)


def copysign(x: Value, y: Value) -> Value:
    """|x| with the sign bit of y."""
    size = hlo.abs(x)
    return where(sign_bit(y), hlo.negate(size), size)


for _op, _build in {
    aten.round.default: _of_floats(hlo.round_nearest_even),
    aten.trunc.default: truncate,
    aten.floor.default: _of_floats(hlo.floor),
    aten.ceil.default: _of_floats(hlo.ceil),
    aten.sign.default: sign,
    aten.abs.default: absolute,
    aten.neg.default: hlo.negate,
}.items():
    lowers(_op)(pointwise(_build))

lowers(aten.copysign.Tensor, aten.copysign.Scalar)(pointwise(copysign, KIND.INT_TO_FLOAT))


@lowers(aten.round.decimals)
def round_decimals(ctx: Context, x: Value, decimals: int) -> Value:
    (x,) = promote(ctx, x)
    if not dtype_of(x).is_floating_point:
        return x
    power = full_like(x, 10.0 ** abs(decimals))
    scale, unscale = (hlo.multiply, hlo.divide) if decimals > 0 else (hlo.divide, hlo.multiply)
    return cast(unscale(hlo.round_nearest_even(scale(x, power)), power), ctx.out.dtype)
