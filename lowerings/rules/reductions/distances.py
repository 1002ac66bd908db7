"""Pairwise distances and their gradients, written in JAX."""

import math

import jax
import jax.numpy as jnp

from xla_dynamo.lowerings.builders.build import Value, shape_of
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.table import Context, aten, lowers

_BY_MATMUL_FROM = 26  # rows; torch's threshold, where its own CPU kernel changes formula


def _norm(apart: jax.Array, p: float) -> jax.Array:
    """The p-norm along the last dimension; p = 0 counts differences."""
    size = jnp.abs(apart)
    if p == 0:
        return (size != 0).astype(size.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return jnp.sqrt((size * size).sum(-1))
    if math.isinf(p):
        return size.max(-1, initial=0)
    return (size**p).sum(-1) ** (1 / p)


def _norm_gradient(apart: jax.Array, p: float, grad: jax.Array, norm: jax.Array) -> jax.Array:
    """How the p-norm moves with each difference; zero where the norm is zero."""
    size, norm, grad = jnp.abs(apart), norm[..., None], grad[..., None]
    safe = jnp.where(norm == 0, 1, norm)
    if p == 0:
        slope = jnp.zeros_like(apart)
    elif p == 1:
        slope = jnp.sign(apart)
    elif p == 2:
        slope = apart / safe
    elif math.isinf(p):
        slope = jnp.sign(apart) * (size == norm)
    else:
        scaled = jnp.where(size == 0, 0, jnp.where(size == 0, 1, size) ** (p - 1) / safe ** (p - 1))
        slope = jnp.sign(apart) * scaled
    return jnp.where(norm == 0, 0, grad * slope)


def _euclidean(x: jax.Array, y: jax.Array) -> jax.Array:
    """|x|² + |y|² - 2 x·y, cut off at zero."""
    squares = (x * x).sum(-1)[..., :, None] + (y * y).sum(-1)[..., None, :]
    mixed = jnp.einsum("...im,...jm->...ij", x, y)
    return jnp.sqrt(jnp.maximum(squares - 2 * mixed, 0))


def _cdist(x: jax.Array, y: jax.Array, p: float) -> jax.Array:
    return _norm(x[..., :, None, :] - y[..., None, :, :], p)


@lowers(aten._cdist_forward.default)
def cdist(ctx: Context, x1: Value, x2: Value, p: float, compute_mode: int | None) -> Value:
    rows = max(shape_of(x1)[-2], shape_of(x2)[-2])
    by_matmul = compute_mode == 1 or (not compute_mode and rows >= _BY_MATMUL_FROM)
    if p == 2 and by_matmul:
        return call_jax(ctx, _euclidean, x1, x2)
    return call_jax(ctx, _cdist, x1, x2, p=p)


def _cdist_gradient(
    grad: jax.Array, x: jax.Array, y: jax.Array, norm: jax.Array, p: float
) -> jax.Array:
    slopes = _norm_gradient(x[..., :, None, :] - y[..., None, :, :], p, grad, norm).sum(-2)
    return slopes if slopes.size else jnp.zeros_like(x)  # an empty batch, which x comes without


@lowers(aten._cdist_backward.default)
def cdist_backward(
    ctx: Context, grad: Value, x1: Value, x2: Value, p: float, cdist: Value
) -> Value:
    return call_jax(ctx, _cdist_gradient, grad, x1, x2, cdist, p=p)


def _pairs(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rows of every pair i < j."""
    return jnp.triu_indices(x.shape[0], 1)


def _pdist(x: jax.Array, p: float) -> jax.Array:
    first, second = _pairs(x)
    return _norm(x[first] - x[second], p)


@lowers(aten._pdist_forward.default)
def pdist(ctx: Context, x: Value, p: float = 2.0) -> Value:
    return call_jax(ctx, _pdist, x, p=p)


def _pdist_gradient(grad: jax.Array, x: jax.Array, norm: jax.Array, p: float) -> jax.Array:
    first, second = _pairs(x)
    slope = _norm_gradient(x[first] - x[second], p, grad, norm)
    return jnp.zeros_like(x).at[first].add(slope).at[second].add(-slope)


@lowers(aten._pdist_backward.default)
def pdist_backward(ctx: Context, grad: Value, x: Value, p: float, pdist: Value) -> Value:
    return call_jax(ctx, _pdist_gradient, grad, x, pdist, p=p)
