"""Bunch-Kaufman: LDL factors of symmetric indefinite matrices, and solves with them.

JAX has no such call. The pivots and the form of the factors are those of LAPACK's sytrf and hetrf
with the lower triangle (J. R. Bunch and L. Kaufman, Mathematics of Computation 31, 1977).
"""

import functools
import math

import jax
import jax.numpy as jnp

from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.table import Context, aten, lowers

# Arguments keep the names of the schemas, which are those of the mathematics.
# ruff: noqa: N803

_GROWTH = (1 + math.sqrt(17)) / 8  # the threshold that bounds the growth of elements


def _exchange(rows: jax.Array, i: jax.Array, j: jax.Array) -> jax.Array:
    """A permutation of the rows' indices that swaps two of them."""
    return jnp.where(rows == i, j, jnp.where(rows == j, i, rows))


def _size(x: jax.Array) -> jax.Array:
    """The absolute value, which LAPACK takes of a complex number in the 1-norm."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def _factor(a: jax.Array, *, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    n = a.shape[-1]
    rows = jnp.arange(n, dtype=jnp.int32)
    flip = jnp.conj if hermitian else lambda x: x
    real = (lambda x: x.real.astype(x.dtype)) if hermitian else lambda x: x
    whole = jnp.tril(a, -1) + flip(jnp.tril(a, -1)).T + jnp.diag(real(jnp.diagonal(a)))

    def choose(k: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The row to exchange, whether the pivot is 2x2, and whether the column is zero."""
        column = jnp.where(rows > k, _size(w[:, k]), -1)
        largest, largest_row = jnp.maximum(jnp.max(column), 0), jnp.argmax(column)
        row = jnp.max(jnp.where((rows >= k) & (rows != largest_row), _size(w[largest_row]), 0))
        pivot = _size(w[k, k])
        stays = (pivot >= _GROWTH * largest) | (pivot * row >= _GROWTH * largest * largest)
        one = stays | (_size(w[largest_row, largest_row]) >= _GROWTH * row)
        return jnp.where(stays, k, largest_row), ~one, jnp.maximum(pivot, largest) == 0

    def eliminate(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        k, w, ld, pivots, info = state
        row, two, zero = choose(k, w)
        order = _exchange(rows, k + two, row)
        w = w[order][:, order]
        after = rows > k + two
        m = jnp.minimum(k + 1, n - 1)
        u, v = jnp.where(after, w[:, k], 0), jnp.where(after & two, w[:, m], 0)
        d, e = real(w[k, k]), jnp.where(two, w[m, k], 0)
        f = jnp.where(two, real(w[m, m]), 1)
        determinant = jnp.where(zero, 1, d * f - e * flip(e))
        x, y = (u * f - v * e) / determinant, (v * d - u * flip(e)) / determinant
        w = w - jnp.outer(x, flip(u)) - jnp.outer(y, flip(v))
        ld = ld.at[:, k].set(jnp.where(rows == k, d, jnp.where((rows == m) & two, e, x)))
        second = jnp.where(rows == m, f, jnp.where(rows < m, 0, y))
        ld = ld.at[:, m].set(jnp.where(two, second, ld[:, m]))
        mark = jnp.where(two, -(row + 1), row + 1).astype(jnp.int32)
        pivots = jnp.where((rows == k) | ((rows == m) & two), mark, pivots)
        info = jnp.where(zero & (info == 0), k + 1, info)
        return k + 1 + two, w, ld, pivots, info

    zero = jnp.int32(0)
    start = (zero, whole, jnp.zeros_like(a), jnp.zeros_like(rows), zero)
    _, _, ld, pivots, info = jax.lax.while_loop(lambda state: state[0] < n, eliminate, start)
    return ld, pivots, info


def _ldl_factor(a: jax.Array, *, hermitian: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    if a.size == 0:
        return a, jnp.zeros(a.shape[:-1], jnp.int32), jnp.zeros(a.shape[:-2], jnp.int32)
    factor = functools.partial(_factor, hermitian=hermitian)
    return jnp.vectorize(factor, signature="(n,n)->(n,n),(n),()")(a)


@lowers(aten.linalg_ldl_factor_ex.default)
def linalg_ldl_factor_ex(
    ctx: Context, self: Value, hermitian: bool = False, check_errors: bool = False
) -> tuple[Value, Value, Value]:
    return call_jax(ctx, _ldl_factor, self, hermitian=hermitian)


def _solve(ld: jax.Array, pivots: jax.Array, b: jax.Array, *, hermitian: bool) -> jax.Array:
    n = ld.shape[-1]
    rows = jnp.arange(n, dtype=jnp.int32)
    flip = jnp.conj if hermitian else lambda x: x
    two = pivots < 0
    first = two & (jnp.cumsum(two) % 2 == 1)  # of a 2x2 pivot's pair of columns
    second = two & ~first
    partner = jnp.abs(pivots) - 1
    lower = jnp.tril(ld, -1)
    below = jnp.where(first, jnp.append(jnp.diagonal(ld, -1), 0), 0)
    lower = jnp.where((rows[:, None] == rows + 1) & first, 0, lower)

    def swap(k: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.where(second[k], x, x[_exchange(rows, k + first[k], partner[k])])

    def forward(k: jax.Array, x: jax.Array) -> jax.Array:
        x = swap(k, x)
        return x - jnp.outer(lower[:, k], x[k])

    def backward(i: jax.Array, x: jax.Array) -> jax.Array:
        k = n - 1 - i
        x = x.at[k].add(-jnp.matmul(flip(lower[:, k]), x, precision="highest"))
        return swap(k, x)

    x = jax.lax.fori_loop(0, n, forward, b)
    d, e = jnp.diagonal(ld)[:, None], below[:, None]
    d_up, d_down = jnp.roll(d, 1, 0), jnp.roll(d, -1, 0)
    e_up, x_up, x_down = jnp.roll(e, 1, 0), jnp.roll(x, 1, 0), jnp.roll(x, -1, 0)
    one_by_one = x / d
    head = (d_down * x - flip(e) * x_down) / (d * d_down - e * flip(e))
    tail = (d_up * x - e_up * x_up) / (d * d_up - e_up * flip(e_up))
    x = jnp.where(first[:, None], head, jnp.where(second[:, None], tail, one_by_one))
    return jax.lax.fori_loop(0, n, backward, x)


def _ldl_solve(ld: jax.Array, pivots: jax.Array, b: jax.Array, *, hermitian: bool) -> jax.Array:
    batch = jnp.broadcast_shapes(ld.shape[:-2], b.shape[:-2])
    if ld.size == 0 or b.size == 0:
        return jnp.zeros((*batch, *b.shape[-2:]), b.dtype)
    solve = functools.partial(_solve, hermitian=hermitian)
    return jnp.vectorize(solve, signature="(n,n),(n),(n,k)->(n,k)")(ld, pivots, b)


@lowers(aten.linalg_ldl_solve.default)
def linalg_ldl_solve(
    ctx: Context, LD: Value, pivots: Value, B: Value, hermitian: bool = False
) -> Value:
    return call_jax(ctx, _ldl_solve, LD, pivots, B, hermitian=hermitian)
