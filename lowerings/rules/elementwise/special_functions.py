"""Special functions: gamma, zeta, and the inverses of the error function."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Value, cast, compare, full_like, where
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import KIND, pointwise, pointwise_in_jax, promote
from xla_dynamo.lowerings.table import Context, aten, lowers


def digamma(x: Value) -> Value:
    """The logarithmic derivative of gamma; at zero the infinity of the other sign, as in torch."""
    at_zero = hlo.divide(full_like(x, -1), x)
    return where(compare(x, full_like(x, 0), "EQ"), at_zero, chlo.digamma(x))


def trigamma(x: Value) -> Value:
    """The derivative of digamma; left of 1/2 by reflection (DLMF 5.15.6)."""
    one, two = full_like(x, 1), full_like(x, 2)
    left = compare(x, full_like(x, 0.5), "LT")
    sine = hlo.divide(hlo.sine(hlo.multiply(x, full_like(x, math.pi))), full_like(x, math.pi))
    right = chlo.zeta(two, where(left, hlo.subtract(one, x), x))
    right = where(compare(x, full_like(x, math.inf), "EQ"), full_like(x, 0), right)
    return where(left, hlo.subtract(hlo.divide(one, hlo.multiply(sine, sine)), right), right)


def _zeta(s: jax.Array, q: jax.Array) -> jax.Array:
    """Hurwitz's zeta; XLA's own is good for q > 0 only, so add up the terms before that."""

    def below(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return (state[1] < 0) & (state[1] != jnp.floor(state[1]))

    def add_term(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, q = state
        more = below(state)
        return jnp.where(more, total + q**-s, total), jnp.where(more, q + 1, q)

    total, rest = jax.lax.while_loop(
        lambda state: jnp.any(below(state)), add_term, (jnp.zeros_like(q), q)
    )
    pole = (q <= 0) & (q == jnp.floor(q)) & ~(s < 1)
    value = total + jsp.zeta(s, rest)
    limit = jnp.where(q < 1, jnp.inf, jnp.where(q > 1, jnp.nan, q))
    pole |= (q > 0) & jnp.isinf(q**-s) & (s > 1)  # the first term alone is beyond all numbers
    value = jnp.where(pole, jnp.inf, jnp.where(jnp.isposinf(s), limit, value))
    return jnp.where(s < 1, jnp.nan, value)


@lowers(aten.polygamma.default)
def polygamma(ctx: Context, n: int, x: Value) -> Value:
    (x,) = promote(dataclasses.replace(ctx, operands=ctx.operands[1:]), x, kind=KIND.INT_TO_FLOAT)
    if n < 2:
        value = trigamma(x) if n else digamma(x)
    else:
        factor = (-1) ** (n + 1) * math.gamma(n + 1)
        value = hlo.multiply(full_like(x, factor), call_jax(ctx, _zeta, full_like(x, n + 1), x))
    return cast(value, ctx.out.dtype)


def _igamma(a: jax.Array, x: jax.Array) -> jax.Array:
    return _at_limits(a, x, jsp.gammainc, 0.0, 1.0)


def _igammac(a: jax.Array, x: jax.Array) -> jax.Array:
    return _at_limits(a, x, jsp.gammaincc, 1.0, 0.0)


def _at_large_a(a: jax.Array, x: jax.Array, at_infinity: float) -> jax.Array:
    """P (1 at infinity) or Q (0 there) of a > 10**6: DLMF 8.12.3 with the first term of 8.12.7."""
    mu = (x - a) / a
    near = jnp.abs(mu) < 1e-2
    m = jnp.where(near, mu, 0)
    eta = jnp.where(
        near,
        m * (1 - m / 3 + 7 * m**2 / 36 - 73 * m**3 / 540),
        jnp.sign(mu) * jnp.sqrt(2 * (mu - jnp.log1p(mu))),
    )
    first = jnp.where(near, -1 / 3 + eta / 12 - 2 * eta**2 / 135, 1 / mu - 1 / eta)
    side = -1 if at_infinity else 1
    tail = jnp.exp(-a * eta**2 / 2) / jnp.sqrt(2 * math.pi * a) * first
    return jsp.erfc(side * eta * jnp.sqrt(a / 2)) / 2 + side * tail


def _at_limits(
    a: jax.Array,
    x: jax.Array,
    inside: Callable[[jax.Array, jax.Array], jax.Array],
    at_zero: float,
    at_infinity: float,
) -> jax.Array:
    """The regularized incomplete gammas where an argument is zero or infinite, as in torch."""
    both = jnp.isinf(a) & jnp.isinf(x)
    # In float64 because near a = x the series lose half the digits of float32; and for large a they
    # need ever more terms.
    wide_a, wide_x = a.astype(jnp.float64), x.astype(jnp.float64)
    large = wide_a > 1e6
    series = inside(jnp.where(large, 1.0, wide_a), jnp.where(large, 1.0, wide_x))
    value = jnp.where(large, _at_large_a(wide_a, wide_x, at_infinity), series).astype(a.dtype)
    value = jnp.where(jnp.isinf(x), at_infinity, value)
    value = jnp.where(jnp.isinf(a), jnp.where(both, jnp.nan, at_zero), value)
    value = jnp.where(x == 0, at_zero, value)
    value = jnp.where(a == 0, jnp.where(x > 0, at_infinity, jnp.nan), value)
    return jnp.where((x < 0) | (a < 0), jnp.nan, value)


for _op, _build in {
    aten.digamma.default: digamma,
    aten.lgamma.default: chlo.lgamma,
    aten.erfinv.default: chlo.erf_inv,
}.items():
    lowers(_op)(pointwise(_build, KIND.INT_TO_FLOAT))

for _op, _function in {
    aten.igamma.default: _igamma,
    aten.igammac.default: _igammac,
    aten.special_ndtri.default: jsp.ndtri,
    aten.special_zeta.default: _zeta,
    aten.special_zeta.self_scalar: _zeta,
    aten.special_zeta.other_scalar: _zeta,
}.items():
    lowers(_op)(pointwise_in_jax(_function, KIND.INT_TO_FLOAT))

if hasattr(jsp, "erfcx"):  # jax 0.10.0 has none: the operator is left to eager torch there
    lowers(aten.special_erfcx.default)(pointwise_in_jax(jsp.erfcx, KIND.INT_TO_FLOAT))
