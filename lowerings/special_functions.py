"""Special functions: gamma, zeta, and the inverses of the error function."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import torch
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.build import Value, cast, compare, full_like, where
from xla_dynamo.lowerings.from_jax import call_jax
from xla_dynamo.lowerings.promotion import KIND, pointwise, pointwise_in_jax, promote
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten


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
    pole = (q <= 0) & (q == jnp.floor(q)) & (s > 1)
    return jnp.where(pole, jnp.inf, total + jsp.zeta(s, rest))


@lowers(aten.polygamma.default)
def polygamma(ctx: Context, n: int, x: Value) -> Value:
    (x,) = promote(dataclasses.replace(ctx, operands=ctx.operands[1:]), x, kind=KIND.INT_TO_FLOAT)
    if n < 2:
        value = trigamma(x) if n else digamma(x)
    else:
        factor = (-1) ** (n + 1) * math.gamma(n + 1)
        value = hlo.multiply(full_like(x, factor), call_jax(ctx, _zeta, full_like(x, n + 1), x))
    return cast(value, ctx.out.dtype)


for _op, _build in {
    aten.digamma.default: digamma,
    aten.lgamma.default: chlo.lgamma,
    aten.erfinv.default: chlo.erf_inv,
}.items():
    lowers(_op)(pointwise(_build, KIND.INT_TO_FLOAT))

for _op, _function in {
    aten.igamma.default: jsp.gammainc,
    aten.igammac.default: jsp.gammaincc,
    aten.special_erfcx.default: jsp.erfcx,
    aten.special_ndtri.default: jsp.ndtri,
    aten.special_zeta.default: _zeta,
    aten.special_zeta.self_scalar: _zeta,
    aten.special_zeta.other_scalar: _zeta,
}.items():
    lowers(_op)(pointwise_in_jax(_function, KIND.INT_TO_FLOAT))
