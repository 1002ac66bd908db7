"""Elementary functions of one variable: exponentials, logarithms, roots, trigonometry."""

import math

import torch
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.build import Value, compare, dtype_of, full_like, where
from xla_dynamo.lowerings.promotion import KIND, pointwise
from xla_dynamo.lowerings.table import lowers

aten = torch.ops.aten


def reciprocal(x: Value) -> Value:
    """1 / x."""
    return hlo.divide(full_like(x, 1), x)


def log2(x: Value) -> Value:
    """The logarithm to base 2."""
    return hlo.divide(hlo.log(x), full_like(x, math.log(2)))


def log10(x: Value) -> Value:
    """The logarithm to base 10."""
    return hlo.divide(hlo.log(x), full_like(x, math.log(10)))


def exp2(x: Value) -> Value:
    """2 to the power of x."""
    return hlo.power(full_like(x, 2), x)


def sinh(x: Value) -> Value:
    """The hyperbolic sine; of reals to the last bits, for which chlo's exp(x - log(2)) is too loose."""
    if dtype_of(x).is_complex:
        return chlo.sinh(x)
    size, half = hlo.abs(x), full_like(x, 0.5)
    grown = hlo.exponential_minus_one(size)
    small = hlo.add(grown, hlo.divide(grown, hlo.add(grown, full_like(x, 1))))
    root = hlo.exponential(hlo.multiply(size, half))
    large = hlo.multiply(hlo.multiply(root, half), root)  # exp(size) would overflow too early
    value = where(compare(size, full_like(x, 10), "LT"), hlo.multiply(small, half), large)
    value = where(compare(x, full_like(x, 0), "LT"), hlo.negate(value), value)
    return where(compare(x, full_like(x, 0), "EQ"), x, value)  # -0.0


def cosh(x: Value) -> Value:
    """The hyperbolic cosine; see sinh."""
    if dtype_of(x).is_complex:
        return chlo.cosh(x)
    half = full_like(x, 0.5)
    root = hlo.exponential(hlo.multiply(hlo.abs(x), half))
    return hlo.add(
        hlo.multiply(hlo.multiply(root, half), root), hlo.divide(hlo.divide(half, root), root)
    )


for _op, _build in {
    aten.exp.default: hlo.exponential,
    aten.exp2.default: exp2,
    aten.expm1.default: hlo.exponential_minus_one,
    aten.log.default: hlo.log,
    aten.log1p.default: hlo.log_plus_one,
    aten.log2.default: log2,
    aten.log10.default: log10,
    aten.sqrt.default: hlo.sqrt,
    aten.rsqrt.default: hlo.rsqrt,
    aten.reciprocal.default: reciprocal,
    aten.sin.default: hlo.sine,
    aten.cos.default: hlo.cosine,
    aten.tan.default: hlo.tan,
    aten.asin.default: chlo.asin,
    aten.acos.default: chlo.acos,
    aten.atan.default: chlo.atan,
    aten.sinh.default: sinh,
    aten.cosh.default: cosh,
    aten.tanh.default: hlo.tanh,
    aten.asinh.default: chlo.asinh,
    aten.acosh.default: chlo.acosh,
    aten.atanh.default: chlo.atanh,
    aten.sigmoid.default: hlo.logistic,
    aten.erf.default: chlo.erf,
    aten.erfc.default: chlo.erfc,
}.items():
    lowers(_op)(pointwise(_build, KIND.INT_TO_FLOAT))
