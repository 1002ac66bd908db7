"""Linear systems: triangular, factored and general solves, and inverses."""

import jax
import jax.numpy as jnp
from jax.lax import linalg

from xla_dynamo.lowerings.builders.build import Value, broadcast_to, rank_of, shape_of
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.rules.linear_algebra.matrix_decompositions import (
    lu_factor,
    permutation_of,
)
from xla_dynamo.lowerings.table import Context, aten, lowers

# Arguments keep the names of the schemas, which are those of the mathematics.
# ruff: noqa: N803


def _same_batch(*matrices: jax.Array) -> list[jax.Array]:
    """Broadcast all but the last two dimensions together."""
    batch = jnp.broadcast_shapes(*(m.shape[:-2] for m in matrices))
    return [jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in matrices]


def _solve_triangular(
    a: jax.Array,
    b: jax.Array,
    *,
    upper: bool,
    left: bool = True,
    unit: bool = False,
    transpose: bool = False,
    adjoint: bool = False,
) -> jax.Array:
    a, b = _same_batch(a, b)
    return linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=not upper,
        transpose_a=transpose or adjoint,
        conjugate_a=adjoint,
        unit_diagonal=unit,
    )


@lowers(aten.linalg_solve_triangular.default)
def linalg_solve_triangular(
    ctx: Context, self: Value, B: Value, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    return call_jax(ctx, _solve_triangular, self, B, upper=upper, left=left, unit=unitriangular)


@lowers(aten.triangular_solve.default)
def triangular_solve(
    ctx: Context,
    self: Value,
    A: Value,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> tuple[Value, Value]:
    solution = call_jax(
        ctx, _solve_triangular, A, self, upper=upper, transpose=transpose, unit=unitriangular
    )
    return solution, broadcast_to(A, ctx.out[1].shape)


# --- LU ----------------------------------------------------------------------------------------


def _lu_solve(
    lu: jax.Array, pivots: jax.Array, b: jax.Array, *, left: bool, adjoint: bool
) -> jax.Array:
    if not left:  # X A = B is A^H X^H = B^H
        x = _lu_solve(lu, pivots, b.mT.conj(), left=True, adjoint=not adjoint)
        return x.mT.conj()
    order = permutation_of(pivots, lu.shape[-1])[..., None]
    lu, b = _same_batch(lu, b)
    order = jnp.broadcast_to(order, (*b.shape[:-2], *order.shape[-2:]))
    if adjoint:
        x = _solve_triangular(lu, b, upper=True, adjoint=True)
        x = _solve_triangular(lu, x, upper=False, unit=True, adjoint=True)
        return jnp.take_along_axis(x, jnp.argsort(order, axis=-2), axis=-2)
    x = jnp.take_along_axis(b, order, axis=-2)
    x = _solve_triangular(lu, x, upper=False, unit=True)
    return _solve_triangular(lu, x, upper=True)


@lowers(aten.linalg_lu_solve.default)
def linalg_lu_solve(
    ctx: Context, LU: Value, pivots: Value, B: Value, left: bool = True, adjoint: bool = False
) -> Value:
    return call_jax(ctx, _lu_solve, LU, pivots, B, left=left, adjoint=adjoint)


def _solve(a: jax.Array, b: jax.Array, *, left: bool, vector: bool) -> tuple[jax.Array, ...]:
    lu, pivots, info = lu_factor(a)
    b = b[..., None] if vector else b
    x = _lu_solve(lu, pivots, b, left=left or vector, adjoint=False)
    return x[..., 0] if vector else x, lu, pivots, info


@lowers(aten._linalg_solve_ex.default)
def linalg_solve_ex(
    ctx: Context, A: Value, B: Value, left: bool = True, check_errors: bool = False
) -> tuple[Value, ...]:
    vector = rank_of(B) == 1 or shape_of(B) == shape_of(A)[:-1]
    return call_jax(ctx, _solve, A, B, left=left, vector=vector)


def _inverse(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    lu, pivots, info = lu_factor(a)
    eye = jnp.eye(a.shape[-1], dtype=a.dtype)
    return _lu_solve(lu, pivots, eye, left=True, adjoint=False), info


@lowers(aten.linalg_inv_ex.default)
def linalg_inv_ex(ctx: Context, A: Value, check_errors: bool = False) -> tuple[Value, Value]:
    return call_jax(ctx, _inverse, A)


# --- Cholesky ----------------------------------------------------------------------------------


def _cholesky_solve(factor: jax.Array, b: jax.Array, *, upper: bool) -> jax.Array:
    x = _solve_triangular(factor, b, upper=upper, adjoint=upper)
    return _solve_triangular(factor, x, upper=upper, adjoint=not upper)


def _cholesky_inverse(factor: jax.Array, *, upper: bool) -> jax.Array:
    eye = jnp.eye(factor.shape[-1], dtype=factor.dtype)
    return _cholesky_solve(factor, eye, upper=upper)


@lowers(aten.cholesky_solve.default)
def cholesky_solve(ctx: Context, self: Value, input2: Value, upper: bool = False) -> Value:
    return call_jax(ctx, _cholesky_solve, input2, self, upper=upper)


@lowers(aten.cholesky_inverse.default)
def cholesky_inverse(ctx: Context, self: Value, upper: bool = False) -> Value:
    return call_jax(ctx, _cholesky_inverse, self, upper=upper)
