"""Functions of matrices: determinants, exponentials and pseudo-inverses."""

import jax
import jax.numpy as jnp
import torch
from jax.lax import linalg

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.rules.linear_algebra.matrix_decompositions import diagonal, lu_factor
from xla_dynamo.lowerings.table import Context, aten, lowers

# Arguments keep the names of the schemas, which are those of the mathematics.
# ruff: noqa: N803


def _factors_transpose(a: torch.Tensor) -> bool:
    """Whether torch factors A's transpose, whose memory is in LAPACK's order already.

    The factors are a result, which the backward pass solves with under the same condition.
    """
    return a.is_contiguous() and not a.is_complex()


def _factor(a: jax.Array, of_transpose: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The LU factors, the exchanges, and the permutation's sign."""
    lu, pivots, _ = lu_factor(a.mT if of_transpose else a)
    exchanges = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1), axis=-1)
    return lu, pivots, jnp.where(exchanges % 2 == 1, -1, 1).astype(a.dtype)


def _det(a: jax.Array, *, of_transpose: bool) -> tuple[jax.Array, ...]:
    lu, pivots, sign = _factor(a, of_transpose)
    return sign * jnp.prod(diagonal(lu), axis=-1), lu, pivots


def _slogdet(a: jax.Array, *, of_transpose: bool) -> tuple[jax.Array, ...]:
    lu, pivots, sign = _factor(a, of_transpose)
    pivot = diagonal(lu)
    logarithm = jnp.sum(jnp.log(jnp.abs(pivot)), axis=-1)
    return sign * jnp.prod(jnp.sign(pivot), axis=-1), logarithm, lu, pivots


@lowers(aten._linalg_det.default)
def linalg_det(ctx: Context, A: Value) -> tuple[Value, ...]:
    return call_jax(ctx, _det, A, of_transpose=_factors_transpose(ctx.operands[0]))


@lowers(aten._linalg_slogdet.default)
def linalg_slogdet(ctx: Context, A: Value) -> tuple[Value, ...]:
    return call_jax(ctx, _slogdet, A, of_transpose=_factors_transpose(ctx.operands[0]))


def _matrix_exp(a: jax.Array) -> jax.Array:
    if a.size == 0:
        return a
    # exp(A) is exp(A / 2**k) squared k times. JAX stops at 16 squarings, and in a batch does all
    # 16 for every matrix; this does as many as the largest matrix needs.
    norm = jnp.max(jnp.sum(jnp.abs(a), axis=-2), axis=-1)
    bound = jnp.clip(jnp.nan_to_num(norm / 2), 1, None)
    times = jnp.ceil(jnp.log2(bound)).astype(jnp.int32)
    scaled = a * jnp.exp2(-times.astype(norm.dtype)).astype(a.dtype)[..., None, None]
    root = jax.scipy.linalg.expm(scaled, max_squarings=0)

    def square(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        done, x = state
        squared = jnp.matmul(x, x, precision="highest")
        return done + 1, jnp.where((done < times)[..., None, None], squared, x)

    start = (jnp.int32(0), root)
    return jax.lax.while_loop(lambda state: jnp.any(state[0] < times), square, start)[1]


@lowers(aten.linalg_matrix_exp.default)
def linalg_matrix_exp(ctx: Context, self: Value) -> Value:
    # Each squaring doubles the relative error: in float64, eager's polynomials are met.
    wide = torch.complex128 if build.dtype_of(self).is_complex else torch.float64
    return build.cast(call_jax(ctx, _matrix_exp, build.cast(self, wide)), ctx.out.dtype)


def _pinv(
    a: jax.Array,
    *tolerances: jax.Array,
    has_atol: bool,
    has_rtol: bool,
    hermitian: bool,
) -> jax.Array:
    if a.size == 0:
        return a.mT
    given = list(tolerances)
    default = jnp.float64(jnp.finfo(a.dtype).eps * max(a.shape[-2:]))
    atol = given.pop(0) if has_atol else jnp.float64(0)
    rtol = given.pop(0) if has_rtol else jnp.where(atol > 0, 0, default)
    if hermitian:
        v, s = linalg.eigh(a, symmetrize_input=False)
        u = v
    else:
        u, s, vh = linalg.svd(a, full_matrices=False)
        v = vh.mT.conj()
    size = jnp.abs(s)
    largest = jnp.max(size, axis=-1, keepdims=True)
    cutoff = jnp.maximum(atol[..., None], rtol[..., None] * largest)
    inverse = jnp.where(size > cutoff, 1 / s, 0).astype(a.dtype)
    return jnp.matmul(v * inverse[..., None, :], u.mT.conj(), precision="highest")


@lowers(aten.linalg_pinv.atol_rtol_tensor)
def linalg_pinv(
    ctx: Context,
    self: Value,
    atol: Value | None = None,
    rtol: Value | None = None,
    hermitian: bool = False,
) -> Value:
    given = [t for t in (atol, rtol) if t is not None]
    flags = {"has_atol": atol is not None, "has_rtol": rtol is not None, "hermitian": hermitian}
    return call_jax(ctx, _pinv, self, *given, **flags)


def _matrix_sqrth(a: jax.Array) -> jax.Array:
    vectors, values = linalg.eigh(a, lower=True, symmetrize_input=False)
    roots = jnp.sqrt(jnp.maximum(values, 0))  # torch's kernel takes rounding errors for zeros
    return (vectors * roots[..., None, :].astype(a.dtype)) @ vectors.mT.conj()


def _polar(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    u, values, vh = linalg.svd(a, full_matrices=False)
    return u @ vh, (vh.mT.conj() * values[..., None, :].astype(a.dtype)) @ vh


@lowers(aten.linalg_matrix_sqrth.default)
def linalg_matrix_sqrth(ctx: Context, self: Value) -> Value:
    return call_jax(ctx, _matrix_sqrth, self)


@lowers(aten.linalg_polar.default)
def linalg_polar(ctx: Context, A: Value) -> tuple[Value, Value]:
    return call_jax(ctx, _polar, A)
