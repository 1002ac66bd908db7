"""Matrix decompositions, by JAX's LAPACK and cuSOLVER calls: Cholesky, LU, QR, SVD, eigen."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import linalg

from xla_dynamo.lowerings.builders.build import Value, full
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.table import Context, aten, lowers

# Arguments keep the names of the schemas, which are those of the mathematics.
# ruff: noqa: N803


def first_true(flags: jax.Array) -> jax.Array:
    """The index of the last dimension's first True, counted from 1; 0 for none: LAPACK's info."""
    if flags.shape[-1] == 0:
        return jnp.zeros(flags.shape[:-1], jnp.int32)
    first = jnp.argmax(flags, axis=-1).astype(jnp.int32) + 1
    return jnp.where(jnp.any(flags, axis=-1), first, 0)


def diagonal(a: jax.Array) -> jax.Array:
    """The diagonals of a batch of matrices."""
    return jnp.diagonal(a, axis1=-2, axis2=-1)


# --- Cholesky ----------------------------------------------------------------------------------


def _cholesky(a: jax.Array, *, upper: bool) -> tuple[jax.Array, jax.Array]:
    # JAX reads the lower triangle, and fills a factor with NaN where LAPACK gives up and tells
    # the order of the minor that is not positive: 1 stands for any of them.
    factor = linalg.cholesky(a.mT.conj() if upper else a, symmetrize_input=False)
    info = jnp.any(jnp.isnan(diagonal(factor)), axis=-1).astype(jnp.int32)
    return factor.mT.conj() if upper else factor, info


@lowers(aten.linalg_cholesky_ex.default)
def linalg_cholesky_ex(
    ctx: Context, self: Value, upper: bool = False, check_errors: bool = False
) -> tuple[Value, Value]:
    return call_jax(ctx, _cholesky, self, upper=upper)


@lowers(aten.cholesky.default)
def cholesky(ctx: Context, self: Value, upper: bool = False) -> Value:
    return call_jax(ctx, _cholesky, self, upper=upper)[0]


# --- LU ----------------------------------------------------------------------------------------


def lu_factor(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """L and U in one matrix, LAPACK's row exchanges counted from 1, and the first zero pivot."""
    lu, pivots, _ = linalg.lu(a)
    return lu, pivots + 1, first_true(diagonal(lu) == 0)


def permutation_of(pivots: jax.Array, size: int) -> jax.Array:
    """Row exchanges to a permutation p with A[p] = L @ U."""
    if pivots.shape[-1] == 0:
        return jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (*pivots.shape[:-1], size))
    return linalg.lu_pivots_to_permutation(pivots - 1, size)


def _unpack(lu: jax.Array, pivots: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    rows, columns = lu.shape[-2:]
    rank = min(rows, columns)
    order = permutation_of(pivots, rows)
    exchange = (jnp.arange(rows)[:, None] == order[..., None, :]).astype(lu.dtype)
    lower = jnp.tril(lu[..., :, :rank], -1) + jnp.eye(rows, rank, dtype=lu.dtype)
    return exchange, lower, jnp.triu(lu[..., :rank, :])


def _lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    lu, pivots, _ = lu_factor(a)
    return _unpack(lu, pivots)


def _require_pivot(ctx: Context, pivot: bool) -> None:
    if not pivot:
        raise NotImplementedError(f"LU without pivoting has no kernel on {ctx.platform}")


@lowers(aten.linalg_lu_factor_ex.default)
def linalg_lu_factor_ex(
    ctx: Context, A: Value, pivot: bool = True, check_errors: bool = False
) -> tuple[Value, Value, Value]:
    _require_pivot(ctx, pivot)
    return call_jax(ctx, lu_factor, A)


@lowers(aten.linalg_lu.default)
def linalg_lu(ctx: Context, A: Value, pivot: bool = True) -> tuple[Value, Value, Value]:
    _require_pivot(ctx, pivot)
    return call_jax(ctx, _lu, A)


@lowers(aten.lu_unpack.default)
def lu_unpack(
    ctx: Context,
    LU_data: Value,
    LU_pivots: Value,
    unpack_data: bool = True,
    unpack_pivots: bool = True,
) -> tuple[Value, Value, Value]:
    parts = call_jax(ctx, _unpack, LU_data, LU_pivots)
    wanted = (unpack_pivots, unpack_data, unpack_data)
    return _unwanted_empty(ctx, parts, wanted)


def _unwanted_empty(ctx: Context, parts: Any, wanted: Any) -> tuple[Value, ...]:
    """Give an empty tensor, as torch does, for a factor that the call does not ask for."""
    return tuple(
        part if want else full(promised.shape, 0, promised.dtype)
        for part, want, promised in zip(parts, wanted, ctx.out, strict=True)
    )


# --- QR ----------------------------------------------------------------------------------------


def _qr(a: jax.Array, *, full_matrices: bool) -> tuple[jax.Array, jax.Array]:
    return linalg.qr(a, full_matrices=full_matrices)


@lowers(aten.linalg_qr.default)
def linalg_qr(ctx: Context, A: Value, mode: str = "reduced") -> tuple[Value, ...]:
    parts = call_jax(ctx, _qr, A, full_matrices=mode == "complete")
    return _unwanted_empty(ctx, parts, (mode != "r", True))


def _geqrf(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    reflectors, tau = jnp.linalg.qr(a, mode="raw")
    return reflectors.mT, tau  # numpy's raw mode is transposed, for Fortran


@lowers(aten.geqrf.default)
def geqrf(ctx: Context, self: Value) -> tuple[Value, Value]:
    return call_jax(ctx, _geqrf, self)


@lowers(aten.linalg_householder_product.default)
def linalg_householder_product(ctx: Context, input: Value, tau: Value) -> Value:
    return call_jax(ctx, linalg.householder_product, input, tau)


@lowers(aten.ormqr.default)
def ormqr(
    ctx: Context,
    self: Value,
    input2: Value,
    input3: Value,
    left: bool = True,
    transpose: bool = False,
) -> Value:
    return call_jax(ctx, linalg.ormqr, self, input2, input3, left=left, transpose=transpose)


# --- singular values and eigenvalues -----------------------------------------------------------


def _svd(a: jax.Array, *, full_matrices: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    return linalg.svd(a, full_matrices=full_matrices)


def _singular_values(a: jax.Array) -> jax.Array:
    return linalg.svd(a, compute_uv=False)


@lowers(aten._linalg_svd.default)
def linalg_svd(
    ctx: Context,
    A: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    driver: str | None = None,
) -> tuple[Value, ...]:
    if compute_uv:
        return call_jax(ctx, _svd, A, full_matrices=full_matrices)
    values = call_jax(ctx, _singular_values, A)
    return _unwanted_empty(ctx, (values, values, values), (False, True, False))


def _eigh(a: jax.Array, *, lower: bool) -> tuple[jax.Array, jax.Array]:
    # torch reads one triangle and the real part of the diagonal, as LAPACK does.
    vectors, values = linalg.eigh(a, lower=lower, symmetrize_input=False)
    return values, vectors


@lowers(aten._linalg_eigh.default)
def linalg_eigh(
    ctx: Context, A: Value, UPLO: str = "L", compute_v: bool = True
) -> tuple[Value, ...]:
    parts = call_jax(ctx, _eigh, A, lower=UPLO in ("L", "l"))
    return _unwanted_empty(ctx, parts, (True, compute_v))


def _eig(a: jax.Array, *, vectors: bool) -> list[jax.Array]:
    return linalg.eig(a, compute_left_eigenvectors=False, compute_right_eigenvectors=vectors)


@lowers(aten.linalg_eig.default)
def linalg_eig(ctx: Context, self: Value) -> tuple[Value, ...]:
    return tuple(call_jax(ctx, _eig, self, vectors=True))


@lowers(aten._linalg_eigvals.default)
def linalg_eigvals(ctx: Context, self: Value) -> Value:
    return call_jax(ctx, _eig, self, vectors=False)[0]
