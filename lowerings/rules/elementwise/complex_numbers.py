"""Complex numbers: parts, conjugates, angles, and their views as pairs of reals."""

import torch
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Value,
    compare,
    concatenate,
    dtype_of,
    expand_dims,
    full_like,
    is_nan,
    rank_of,
    reshape,
    shape_of,
    slice_dim,
    where,
)
from xla_dynamo.lowerings.builders.promotion import KIND, pointwise
from xla_dynamo.lowerings.table import Context, aten, lowers


def conjugate(x: Value) -> Value:
    """The complex conjugate; a real x as it is."""
    return chlo.conj(x) if dtype_of(x).is_complex else x


def angle(x: Value) -> Value:
    """The argument of a complex number; for a real one 0 or pi, and NaN stays."""
    if dtype_of(x).is_complex:
        return hlo.atan2(hlo.imag(x), hlo.real(x))
    turned = where(compare(x, full_like(x, 0), "LT"), full_like(x, torch.pi), full_like(x, 0))
    return where(is_nan(x), x, turned)


lowers(
    aten.conj.default,
    aten._conj.default,
    aten._conj_physical.default,
    aten.conj_physical.default,
)(pointwise(conjugate))
lowers(aten.resolve_conj.default, aten.resolve_neg.default)(pointwise(lambda x: x))
lowers(aten._neg_view.default)(pointwise(hlo.negate))
lowers(aten.real.default)(pointwise(hlo.real))
lowers(aten.imag.default)(pointwise(hlo.imag))
lowers(aten.angle.default)(pointwise(angle, KIND.INT_TO_FLOAT))
lowers(aten.complex.default)(pointwise(hlo.complex))


@lowers(aten.polar.default)
def polar(ctx: Context, abs: Value, angle: Value) -> Value:
    build = pointwise(
        lambda r, a: hlo.complex(hlo.multiply(r, hlo.cosine(a)), hlo.multiply(r, hlo.sine(a)))
    )
    return build(ctx, abs, angle)


def split_parts(x: Value) -> Value:
    """The real and the imaginary part along a new last dimension."""
    last = rank_of(x)
    return concatenate([expand_dims(hlo.real(x), last), expand_dims(hlo.imag(x), last)], last)


def join_parts(x: Value) -> Value:
    """Complex numbers from the pairs in the last dimension."""
    last = rank_of(x) - 1
    parts = (slice_dim(x, last, i, i + 1) for i in range(2))
    return hlo.complex(*(reshape(part, shape_of(x)[:-1]) for part in parts))


@lowers(aten.view_as_real.default)
def view_as_real(ctx: Context, x: Value) -> Value:
    return split_parts(x)


@lowers(aten.view_as_complex.default)
def view_as_complex(ctx: Context, x: Value) -> Value:
    return join_parts(x)
