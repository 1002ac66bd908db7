"""Bessel, modified Bessel, spherical Bessel and Airy functions, in JAX.

Up to a moderate argument they are computed by their power series (DLMF 10.8, 10.31, 9.4). Beyond
it, each is an integral over the real line of an analytic function that decays like exp(-t**2); for
such a function the trapezoidal rule with some twenty points is exact to double precision. All of it
is computed in float64, because terms of the series cancel.
"""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np

from xla_dynamo.lowerings.builders.promotion import KIND, pointwise_in_jax
from xla_dynamo.lowerings.table import aten, lowers

Array: TypeAlias = jax.Array

_SWITCH = 4.0  # series below, integral above
_FACTORIALS = np.array([float(math.factorial(k)) for k in range(29)])
_HARMONIC = np.concatenate([[0.0], np.cumsum(1 / np.arange(1.0, 29.0))])
_GAMMA = float(np.euler_gamma)
# Coefficients of (x / 2)**(2 k), by order 0 and 1, in the series of I and in the part of K's that
# comes without a logarithm.
_FIRST = (1 / _FACTORIALS[:-1] ** 2, 1 / (_FACTORIALS[:-1] * _FACTORIALS[1:]))
_SECOND = (_FIRST[0] * _HARMONIC[:-1], _FIRST[1] * (_HARMONIC[:-1] + _HARMONIC[1:] - 2 * _GAMMA))


def _polynomial(coefficients: np.ndarray, x: Array) -> Array:
    return jnp.polyval(jnp.asarray(coefficients[::-1]), x)


def _integral(values: Array, step: Array) -> Array:
    """The trapezoidal rule over the whole line for an even function, given at 0, step, ..."""
    return step * (2 * jnp.sum(values, axis=-1) - values[..., 0])


def _hankel(x: Array, order: int) -> Array:
    """J + iY for x > _SWITCH: DLMF 10.32.8 at -ix, with t = 1 + i s**2 / x."""
    step = 0.3
    s = step * np.arange(22)
    base = 1 + 0.5j * s**2 / x[..., None]
    if order == 0:
        values = np.exp(-(s**2)) / jnp.sqrt(base)
    else:
        values = 2 * s**2 * np.exp(-(s**2)) * jnp.sqrt(base)
    phase = x - (2 * order + 1) * math.pi / 4
    envelope = jnp.sqrt(2 / x) / math.pi * _integral(values, step)
    return envelope * jax.lax.complex(jnp.cos(phase), jnp.sin(phase))


def _wide(x: Array) -> tuple[Array, Array, Array]:
    """|x| in float64, whether the series is to be used, and |x| moved to where each is good."""
    x = jnp.abs(x.astype(jnp.float64))
    small = x <= _SWITCH
    return small, jnp.where(small, x, 1.0), jnp.where(small, 2 * _SWITCH, x)


def bessel_j(x: Array, order: int) -> Array:
    """J of order 0 or 1."""
    small, near, far = _wide(x)
    series = (near / 2) ** order * _polynomial(_FIRST[order], -((near / 2) ** 2))
    value = jnp.where(small, series, _hankel(far, order).real).astype(x.dtype)
    return jnp.where(x < 0, -value, value) if order else value


def bessel_y(x: Array, order: int) -> Array:
    """Y of order 0 or 1; NaN for negative x."""
    small, near, far = _wide(x)
    square, log = -((near / 2) ** 2), jnp.log(near) - math.log(2)
    first, second = (_polynomial(c[order], square) for c in (_FIRST, _SECOND))
    if order == 0:
        series = 2 / math.pi * ((log + _GAMMA) * first - second)
    else:
        series = (near * (log * first - second / 2) - 2 / near) / math.pi
    value = jnp.where(small, series, _hankel(far, order).imag)
    value = jnp.where(x == 0, -jnp.inf, value)
    return jnp.where(x < 0, jnp.nan, value).astype(x.dtype)


def bessel_k(x: Array, order: int, scaled: bool) -> Array:
    """K of order 0 or 1, times exp(x) if scaled; NaN for negative x."""
    small, near, far = _wide(x)
    square, log = (near / 2) ** 2, jnp.log(near) - math.log(2)
    first, second = (_polynomial(c[order], square) for c in (_FIRST, _SECOND))
    if order == 0:
        series = second - (log + _GAMMA) * first
    else:
        series = 1 / near + near / 2 * (log * first - second / 2)
    # DLMF 10.32.9, with the factor exp(-x) taken out.
    step = 0.6 / jnp.sqrt(far + 4)
    t = step[..., None] * np.arange(20)
    root = jnp.sqrt(far)[..., None]  # 2 * far may be infinite
    values = jnp.exp(-2 * (root * jnp.sinh(t / 2)) ** 2) * (jnp.cosh(t) if order else 1)
    integral = _integral(values, step) / 2
    wide = x.astype(jnp.float64)
    if scaled:
        series = series * jnp.exp(near)
    else:
        integral = integral * jnp.exp(-far)
    value = jnp.where(small, series, integral)
    value = jnp.where(wide == 0, jnp.inf, jnp.where(jnp.isposinf(wide), 0, value))
    return jnp.where(wide < 0, jnp.nan, value).astype(x.dtype)


def _bessel_j0(x: Array) -> Array:
    return bessel_j(x, 0)


def _bessel_j1(x: Array) -> Array:
    return bessel_j(x, 1)


def _bessel_y0(x: Array) -> Array:
    return bessel_y(x, 0)


def _bessel_y1(x: Array) -> Array:
    return bessel_y(x, 1)


def _bessel_k0(x: Array) -> Array:
    return bessel_k(x, 0, False)


def _bessel_k1(x: Array) -> Array:
    return bessel_k(x, 1, False)


def _scaled_bessel_k0(x: Array) -> Array:
    return bessel_k(x, 0, True)


def _scaled_bessel_k1(x: Array) -> Array:
    return bessel_k(x, 1, True)


def _spherical_bessel_j0(x: Array) -> Array:
    near = jnp.abs(x) < 0.5
    square = jnp.where(near, x * x, 0)
    series = _polynomial(
        np.array([(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8)]), square
    )
    ratio = jnp.where(jnp.isinf(x), 0, jnp.sin(x) / jnp.where(near, 1, x))
    return jnp.where(near, series, ratio).astype(x.dtype)


_AIRY_SWITCH = 3.0
_AIRY_AT_0 = 3 ** (-2 / 3) / math.gamma(2 / 3)
_AIRY_SLOPE_AT_0 = -(3 ** (-1 / 3)) / math.gamma(1 / 3)


def _airy_series() -> tuple[np.ndarray, np.ndarray]:
    even, odd = [1.0], [1.0]
    for k in range(1, 24):
        even.append(even[-1] / ((3 * k) * (3 * k - 1)))
        odd.append(odd[-1] / ((3 * k) * (3 * k + 1)))
    return np.array(even) * _AIRY_AT_0, np.array(odd) * _AIRY_SLOPE_AT_0


_AIRY_EVEN, _AIRY_ODD = _airy_series()


def _airy_ai(x: Array) -> Array:
    wide = x.astype(jnp.float64)
    small = jnp.abs(wide) <= _AIRY_SWITCH
    near, far = jnp.where(small, wide, 0), jnp.where(small, 2 * _AIRY_SWITCH, jnp.abs(wide))
    series = _polynomial(_AIRY_EVEN, near**3) + near * _polynomial(_AIRY_ODD, near**3)
    # DLMF 9.5.8 in the whole plane cut along the negative axis, on which Ai is a sum of two values
    # at 60 degrees from the positive one (9.2.14).
    negative = wide < 0
    root = jnp.sqrt(far)
    turned = root * jnp.where(negative, np.exp(1j * math.pi / 6), 1)
    step = 0.263 / jnp.sqrt(root)
    t = step[..., None] * np.arange(26)
    values = jnp.exp(-turned[..., None] * t**2) * jnp.cos(t**3 / 3)
    decay = jnp.where(negative, 1, jnp.exp(-2 / 3 * root**3))
    angle = jnp.where(negative, math.pi / 3 - 2 / 3 * root**3, 0)
    turn = jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
    value = (turn * _integral(values, step)).real * decay / (2 * math.pi)
    value = jnp.where(negative, 2 * value, value)
    value = jnp.where(small, series, value)
    return jnp.where(jnp.isinf(wide), jnp.nan, value).astype(x.dtype)


for _op, _function in {
    aten.special_bessel_j0.default: _bessel_j0,
    aten.special_bessel_j1.default: _bessel_j1,
    aten.special_bessel_y0.default: _bessel_y0,
    aten.special_bessel_y1.default: _bessel_y1,
    aten.special_modified_bessel_k0.default: _bessel_k0,
    aten.special_modified_bessel_k1.default: _bessel_k1,
    aten.special_scaled_modified_bessel_k0.default: _scaled_bessel_k0,
    aten.special_scaled_modified_bessel_k1.default: _scaled_bessel_k1,
    aten.i0.default: jsp.i0,
    aten.special_i0e.default: jsp.i0e,
    aten.special_i1.default: jsp.i1,
    aten.special_i1e.default: jsp.i1e,
    aten.special_modified_bessel_i0.default: jsp.i0,
    aten.special_modified_bessel_i1.default: jsp.i1,
    aten.special_spherical_bessel_j0.default: _spherical_bessel_j0,
    aten.special_airy_ai.default: _airy_ai,
}.items():
    lowers(_op)(pointwise_in_jax(_function, KIND.INT_TO_FLOAT))
