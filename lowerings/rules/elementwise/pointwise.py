"""Elementary functions of one variable: exponentials, logarithms, roots, trigonometry."""

import math
from collections.abc import Callable
from typing import Any

from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Value, compare, dtype_of, full_like, where
from xla_dynamo.lowerings.builders.promotion import KIND, pointwise
from xla_dynamo.lowerings.rules.elementwise.rounding import copysign
from xla_dynamo.lowerings.table import aten, lowers


def reciprocal(x: Value) -> Value:
    """1 / x."""
    return hlo.divide(full_like(x, 1), x)


def log_to_base(base: int) -> Callable[[Value], Value]:
    """The logarithm to a base, exact where x is a power of it: floor(log2(8)) is 3, not 2."""

    def log(x: Value) -> Value:
        if dtype_of(x).is_complex:
            return _parts_times(hlo.log(x), 1 / math.log(base))
        y = hlo.divide(hlo.log(x), full_like(x, math.log(base)))
        whole = hlo.round_nearest_even(y)
        return where(compare(hlo.power(full_like(x, base), whole), x, "EQ"), whole, y)

    return log


def exp2(x: Value) -> Value:
    """2 to the power of x."""
    if dtype_of(x).is_complex:
        return hlo.exponential(_parts_times(x, math.log(2)))
    return hlo.power(full_like(x, 2), x)


def _parts_times(x: Value, factor: float) -> Value:
    """A complex x times a real number; times a complex one, infinity would become NaN."""
    real, imag = hlo.real(x), hlo.imag(x)
    by = full_like(real, factor)
    return hlo.complex(hlo.multiply(real, by), hlo.multiply(imag, by))


def sinh(x: Value) -> Value:
    """The hyperbolic sine; for reals, chlo's exp(x - log(2)) is too loose."""
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


def _on_cut(build: Callable[[Value], Value], part: str, turned: bool = False) -> Any:
    """Let the sign of a zero part choose the side of a complex branch cut, as in C (Kahan 1987).

    XLA's functions have the right value on one side only. `part`, "real" or "imag", has the same
    sign in argument and result, or the opposite one if `turned`.
    """

    def signed(x: Value) -> Value:
        value = build(x)
        if not dtype_of(x).is_complex:
            return value
        side = getattr(hlo, part)(x)
        fixed = copysign(getattr(hlo, part)(value), hlo.negate(side) if turned else side)
        if part == "real":
            return hlo.complex(fixed, hlo.imag(value))
        return hlo.complex(hlo.real(value), fixed)

    return signed


sqrt = _on_cut(hlo.sqrt, "imag")


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x)) if dtype_of(x).is_complex else hlo.rsqrt(x)


for _op, _build in {
    aten.exp.default: hlo.exponential,
    aten.exp2.default: exp2,
    aten.expm1.default: hlo.exponential_minus_one,
    aten.log.default: hlo.log,
    aten.log1p.default: hlo.log_plus_one,
    aten.log2.default: log_to_base(2),
    aten.log10.default: log_to_base(10),
    aten.sqrt.default: sqrt,
    aten.rsqrt.default: rsqrt,
    aten.reciprocal.default: reciprocal,
    aten.sin.default: hlo.sine,
    aten.cos.default: hlo.cosine,
    aten.tan.default: hlo.tan,
    aten.asin.default: _on_cut(chlo.asin, "imag"),
    aten.acos.default: _on_cut(chlo.acos, "imag", turned=True),
    aten.atan.default: _on_cut(chlo.atan, "real"),
    aten.sinh.default: sinh,
    aten.cosh.default: cosh,
    aten.tanh.default: hlo.tanh,
    aten.asinh.default: _on_cut(chlo.asinh, "real"),
    aten.acosh.default: _on_cut(chlo.acosh, "imag"),
    aten.atanh.default: _on_cut(chlo.atanh, "imag"),
    aten.sigmoid.default: hlo.logistic,
    aten.erf.default: chlo.erf,
    aten.erfc.default: chlo.erfc,
}.items():
    lowers(_op)(pointwise(_build, KIND.INT_TO_FLOAT))
