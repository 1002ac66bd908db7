"""Orthogonal polynomials: Chebyshev's four kinds, Hermite's two, Laguerre's and Legendre's.

Each is computed by its three-term recurrence (DLMF 18.9), which takes as many steps as the degree.
For Chebyshev's kinds torch, and so this file, uses the closed form between -1 and 1 from a certain
degree on.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from xla_dynamo.lowerings.builders.build import Number, Value, cast
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import KIND, promote
from xla_dynamo.lowerings.table import Context, aten, lowers

Array: TypeAlias = jax.Array


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """A family of polynomials of degrees 0, 1, 2, ...

    Attributes:
        linear: the polynomial of degree 1, as a function of x.
        step: the polynomial of degree k + 1 from x, k, and those of degrees k and k - 1.
        closed: the polynomial of degree n at cos(angle), from n and the angle.
        closed_above: degrees above this one are computed by `closed`, where -1 < x < 1.
        degree_limit: the highest degree that torch computes in 32 and in 64 bits.
        shifted: whether the argument is 2 x - 1 instead of x.

    """

    linear: Callable[[Array], Array]
    step: Callable[[Array, Array, Array, Array], Array]
    closed: Callable[[Array, Array], Array] | None = None
    closed_above: int = 0
    degree_limit: tuple[int, int] | None = None
    shifted: bool = False


def _evaluate(x: Array, n: Array, *, polynomial: Polynomial) -> Array:
    usable = jnp.isfinite(n)  # a degree that is no number counts as negative
    n = jnp.where(usable, jnp.trunc(n), -1)
    if polynomial.shifted:
        x = x + x - 1
    closed = jnp.zeros_like(x, dtype=bool)
    if polynomial.closed is not None:
        closed = (n > polynomial.closed_above) & (jnp.abs(x) < 1)
    too_high = jnp.zeros_like(closed)
    if polynomial.degree_limit is not None:
        too_high = n > polynomial.degree_limit[x.dtype.itemsize == 8]
    steps = jnp.where(closed | too_high, 0, n)

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        k, q, _ = state
        return jnp.any((k < steps) & ~jnp.isnan(q))

    def advance(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, q, p = state
        r = polynomial.step(x, k, q, p)
        more = k < steps
        return k + 1, jnp.where(more, r, q), jnp.where(more, q, p)

    one = jnp.ones_like(x)
    start = (jnp.ones((), x.dtype), polynomial.linear(x), one)
    result = jax.lax.while_loop(unfinished, advance, start)[1]
    result = jnp.where(n < 1, jnp.where(n < 0, 0, one), result)
    if polynomial.closed is not None:
        angle = jnp.arccos(jnp.where(closed, x, 0))
        result = jnp.where(closed, polynomial.closed(n, angle), result)
    return jnp.where(too_high, jnp.nan, result)


def _chebyshev_step(x: Array, k: Array, q: Array, p: Array) -> Array:
    return (x + x) * q - p


_CHEBYSHEV = {
    "t": (lambda x: x, lambda n, a: jnp.cos(n * a), 6, 6),
    "u": (lambda x: x + x, lambda n, a: jnp.sin((n + 1) * a) / jnp.sin(a), 8, 6),
    "v": (lambda x: x + x - 1, lambda n, a: jnp.cos((n + 0.5) * a) / jnp.cos(a / 2), 8, 6),
    "w": (lambda x: x + x + 1, lambda n, a: jnp.sin((n + 0.5) * a) / jnp.sin(a / 2), 8, 4),
}

POLYNOMIALS: dict[str, Polynomial] = {
    "hermite_polynomial_h": Polynomial(
        lambda x: x + x, lambda x, k, q, p: (x + x) * q - 2 * k * p, degree_limit=(128, 512)
    ),
    "hermite_polynomial_he": Polynomial(
        lambda x: x, lambda x, k, q, p: x * q - k * p, degree_limit=(128, 512)
    ),
    "laguerre_polynomial_l": Polynomial(
        lambda x: 1 - x, lambda x, k, q, p: ((k + k + (1 - x)) * q - k * p) / (k + 1)
    ),
    "legendre_polynomial_p": Polynomial(
        lambda x: x, lambda x, k, q, p: ((k + k + 1) * x * q - k * p) / (k + 1)
    ),
}
for _kind, (_linear, _closed, _above, _above_shifted) in _CHEBYSHEV.items():
    POLYNOMIALS[f"chebyshev_polynomial_{_kind}"] = Polynomial(
        _linear, _chebyshev_step, _closed, _above
    )
    POLYNOMIALS[f"shifted_chebyshev_polynomial_{_kind}"] = Polynomial(
        _linear, _chebyshev_step, _closed, _above_shifted, shifted=True
    )


def _register(packet: Any, polynomial: Polynomial) -> None:
    @lowers(packet.default, packet.x_scalar, packet.n_scalar)
    def rule(ctx: Context, x: Value | Number, n: Value | Number) -> Value:
        x, n = promote(ctx, x, n, kind=KIND.INT_TO_FLOAT)
        return cast(call_jax(ctx, _evaluate, x, n, polynomial=polynomial), ctx.out.dtype)


for _name, _polynomial in POLYNOMIALS.items():
    _register(getattr(aten, f"special_{_name}"), _polynomial)
