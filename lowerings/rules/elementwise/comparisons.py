"""Comparison, selection and logic: eq to ge, minima and maxima, clamp, where, isnan."""

import functools
import math

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Number,
    Value,
    bitcast,
    broadcast_to,
    cast,
    compare,
    dtype_of,
    full,
    full_like,
    is_nan,
    shape_of,
    where,
)
from xla_dynamo.lowerings.builders.promotion import KIND, pointwise, spread
from xla_dynamo.lowerings.table import Context, aten, lowers

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _packet = getattr(aten, _name)
    lowers(_packet.Tensor, _packet.Scalar)(
        pointwise(
            functools.partial(compare, direction=_name.upper()),
            KIND.ALWAYS_BOOL,
            rounds_numbers=True,
        )
    )

for _op, _build in {
    aten.logical_and.default: hlo.and_,
    aten.logical_or.default: hlo.or_,
    aten.logical_xor.default: hlo.xor,
    aten.logical_not.default: hlo.not_,
}.items():

    @lowers(_op)
    def logical(ctx: Context, *args: Value, build=_build) -> Value:
        return build(*spread(args, torch.bool))


def fmax(x: Value, y: Value) -> Value:
    """The greater of two, or the one that is a number."""
    return where(is_nan(x), y, where(is_nan(y), x, hlo.maximum(x, y)))


def fmin(x: Value, y: Value) -> Value:
    """The lesser of two, or the one that is a number."""
    return where(is_nan(x), y, where(is_nan(y), x, hlo.minimum(x, y)))


for _op, _build in {
    aten.maximum.default: hlo.maximum,
    aten.minimum.default: hlo.minimum,
    aten.fmax.default: fmax,
    aten.fmin.default: fmin,
}.items():
    lowers(_op)(pointwise(_build))


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(
    ctx: Context,
    x: Value,
    min: Value | Number | None = None,
    max: Value | Number | None = None,
) -> Value:
    # hlo.clamp leaves open which bound wins where they cross; in torch it is max.
    bounds = [bound for bound in (min, max) if bound is not None]
    x, *bounds = spread([x, *bounds], ctx.out.dtype)
    if min is not None:
        x = hlo.maximum(x, bounds[0])
    return x if max is None else hlo.minimum(x, bounds[-1])


@lowers(aten.where.self)
def where_(ctx: Context, condition: Value, x: Value, other: Value) -> Value:
    condition, x, other = (broadcast_to(v, ctx.out.shape) for v in (condition, x, other))
    return where(cast(condition, torch.bool), cast(x, ctx.out.dtype), cast(other, ctx.out.dtype))


def is_inf(x: Value) -> Value:
    """Where x is plus or minus infinity; a complex number is where either part is."""
    dtype = dtype_of(x)
    if dtype.is_complex:
        return hlo.or_(is_inf(hlo.real(x)), is_inf(hlo.imag(x)))
    if not dtype.is_floating_point:
        return full(shape_of(x), False, torch.bool)
    return compare(hlo.abs(x), full_like(x, math.inf), "EQ")


def sign_bit(x: Value) -> Value:
    """Where x is negative, -0.0 and negative NaNs included."""
    dtype = dtype_of(x)
    if dtype.is_floating_point:
        x = bitcast(x, _BITS[dtype.itemsize])
    elif not dtype.is_signed:
        return full(shape_of(x), False, torch.bool)
    return compare(x, full_like(x, 0), "LT")


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@lowers(aten.isnan.default)
def isnan(ctx: Context, x: Value) -> Value:
    return is_nan(x)


@lowers(aten.isinf.default)
def isinf(ctx: Context, x: Value) -> Value:
    return is_inf(x)


@lowers(aten.signbit.default)
def signbit(ctx: Context, x: Value) -> Value:
    return sign_bit(x)
