"""Random numbers of the distributions: normal, Bernoulli and dropout, exponential and kin."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Number,
    Value,
    broadcast_to,
    cast,
    compare,
    dtype_of,
    full,
    full_like,
    shape_of,
    where,
)
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.rules.random.random import (
    affine,
    normal_draws,
    open_uniform,
    random_bits,
    uniform_draws,
    working_dtype,
)
from xla_dynamo.lowerings.rules.reductions.sorting import order_of
from xla_dynamo.lowerings.table import Context, aten, lowers

# --- normal ------------------------------------------------------------------------------------


@lowers(aten.randn.default)
def randn(ctx: Context, size: list[int], **options: Any) -> Value:
    return normal_draws(ctx, size, ctx.out.dtype)


@lowers(aten.randn_like.default)
def randn_like(ctx: Context, x: Value, **options: Any) -> Value:
    return normal_draws(ctx, ctx.out.shape, ctx.out.dtype)


def _normal(ctx: Context, mean: Number | Value, std: Number | Value) -> Value:
    dtype = ctx.out.dtype
    wide = dtype if dtype.is_complex else working_dtype(dtype)
    return cast(affine(normal_draws(ctx, ctx.out.shape, wide), std, mean), dtype)


@lowers(aten.normal_functional.default)
def normal_functional(
    ctx: Context, x: Value, mean: float = 0.0, std: float = 1.0, **options: Any
) -> Value:
    return _normal(ctx, mean, std)


@lowers(aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor)
def normal(ctx: Context, mean: float | Value, std: float | Value = 1.0, **options: Any) -> Value:
    return _normal(ctx, mean, std)


@lowers(aten.normal.float_float)
def normal_of_size(ctx: Context, mean: float, std: float, size: list[int], **options: Any) -> Value:
    return _normal(ctx, mean, std)


# --- Bernoulli and dropout ---------------------------------------------------------------------


def happens(ctx: Context, shape: Any, p: float) -> Value:
    """True with probability p, to 32 bits: a comparison of whole numbers, so 0 and 1 are exact."""
    below = round(p * 2**32)
    if below in (0, 2**32):
        return full(shape, below > 0, torch.bool)
    bits = random_bits(ctx, shape, torch.uint32)
    return compare(bits, full_like(bits, below), "LT")


@lowers(aten.bernoulli.p)
def bernoulli_p(ctx: Context, x: Value, p: float, **options: Any) -> Value:
    return cast(happens(ctx, ctx.out.shape, p), ctx.out.dtype)


def _bernoulli(ctx: Context, p: Value) -> Value:
    p = cast(p, working_dtype(dtype_of(p)))
    u = uniform_draws(ctx, ctx.out.shape, dtype_of(p))
    return cast(compare(u, broadcast_to(p, shape_of(u)), "LT"), ctx.out.dtype)


@lowers(aten.bernoulli.default)
def bernoulli(ctx: Context, p: Value, **options: Any) -> Value:
    return _bernoulli(ctx, p)


@lowers(aten.bernoulli.Tensor)
def bernoulli_like(ctx: Context, x: Value, p: Value, **options: Any) -> Value:
    return _bernoulli(ctx, p)


@lowers(aten.native_dropout.default)
def native_dropout(ctx: Context, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    if train is False or p == 0:
        return x, full(shape_of(x), True, torch.bool)
    kept = happens(ctx, shape_of(x), 1 - p)
    scale = 1 / (1 - p) if p < 1 else 0.0
    # A product, not a choice, so that what is dropped from an infinity is NaN as in torch.
    factor = where(kept, full_like(x, scale), full_like(x, 0))
    return hlo.multiply(x, factor), kept


@lowers(aten.rrelu_with_noise_functional.default)
def rrelu_with_noise(
    ctx: Context,
    x: Value,
    noise: Value,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    **options: Any,
) -> tuple[Value, Value]:
    negative = compare(x, full_like(x, 0), "LE")
    if not training:
        slope = full_like(x, (lower + upper) / 2)
        return where(negative, hlo.multiply(x, slope), x), noise
    drawn = affine(uniform_draws(ctx, shape_of(x), dtype_of(x)), upper - lower, lower)
    slopes = where(negative, drawn, full_like(x, 1))
    return hlo.multiply(x, slopes), slopes


# --- by inversion of a uniform number ----------------------------------------------------------


def _open(ctx: Context) -> Value:
    return open_uniform(ctx, ctx.out.shape, working_dtype(ctx.out.dtype))


@lowers(aten.exponential.default)
def exponential(ctx: Context, x: Value, lambd: float = 1.0, **options: Any) -> Value:
    log = hlo.log(_open(ctx))
    return cast(hlo.divide(log, full_like(log, -lambd)), ctx.out.dtype)


@lowers(aten.geometric.default)
def geometric(ctx: Context, x: Value, p: float, **options: Any) -> Value:
    if p == 1:
        return full(ctx.out.shape, 1, ctx.out.dtype)
    log = hlo.log(_open(ctx))
    return cast(hlo.ceil(hlo.divide(log, full_like(log, math.log1p(-p)))), ctx.out.dtype)


@lowers(aten.log_normal.default)
def log_normal(
    ctx: Context, x: Value, mean: float = 1.0, std: float = 2.0, **options: Any
) -> Value:
    z = normal_draws(ctx, ctx.out.shape, working_dtype(ctx.out.dtype))
    return cast(hlo.exponential(affine(z, std, mean)), ctx.out.dtype)


@lowers(aten.cauchy.default)
def cauchy(
    ctx: Context, x: Value, median: float = 0.0, sigma: float = 1.0, **options: Any
) -> Value:
    angle = affine(_open(ctx), math.pi, -math.pi / 2)
    return cast(affine(hlo.tan(angle), sigma, median), ctx.out.dtype)


# --- written in JAX ----------------------------------------------------------------------------


def _with_replacement(p: jax.Array, bits: jax.Array) -> jax.Array:
    """Invert the cumulative distribution; a category of probability 0 is never met."""
    cumulative = lax.associative_scan(jnp.add, p.astype(jnp.float64), axis=-1)
    total = cumulative[..., -1:]
    target = (bits >> 11).astype(jnp.float64) * 2.0**-53 * total
    passed = cumulative[..., None, :] <= target[..., :, None]
    last = p.shape[-1] - 1 - jnp.argmax(p[..., ::-1] > 0, axis=-1, keepdims=True)
    return jnp.minimum(passed.sum(-1), last).astype(jnp.int64)


def _without_replacement(p: jax.Array, bits: jax.Array, count: int) -> jax.Array:
    """The first of exponential clocks of rates p to ring, in the order in which they ring."""
    u = ((bits >> 11).astype(jnp.float64) + 0.5) * 2.0**-53
    waiting = -jnp.log(u) / p.astype(jnp.float64)
    return order_of(waiting, p.ndim - 1, False)[..., :count]


@lowers(aten.multinomial.default)
def multinomial(
    ctx: Context, x: Value, num_samples: int, replacement: bool = False, **options: Any
) -> Value:
    if replacement:
        bits = random_bits(ctx, ctx.out.shape, torch.uint64)
        return call_jax(ctx, _with_replacement, x, bits)
    bits = random_bits(ctx, shape_of(x), torch.uint64)
    return call_jax(ctx, _without_replacement, x, bits, count=num_samples)


def _key(words: jax.Array) -> jax.Array:
    halves = lax.bitcast_convert_type(words, jnp.uint32)
    return jax.random.wrap_key_data(halves[0] ^ halves[1][::-1] * jnp.uint32(0x9E3779B9))


def _poisson(rate: jax.Array, words: jax.Array) -> jax.Array:
    return jax.random.poisson(_key(words), rate, dtype=jnp.int64).astype(rate.dtype)


def _gamma(shape: jax.Array, words: jax.Array) -> jax.Array:
    drawn = jax.random.gamma(_key(words), shape, dtype=shape.dtype)
    return jnp.maximum(drawn, jnp.finfo(shape.dtype).tiny)  # as torch: its logarithm is finite


def _binomial(count: jax.Array, p: jax.Array, words: jax.Array) -> jax.Array:
    return jax.random.binomial(_key(words), count, p, dtype=count.dtype)


def _dirichlet(concentration: jax.Array, words: jax.Array) -> jax.Array:
    info = jnp.finfo(concentration.dtype)
    drawn = jax.random.dirichlet(_key(words), concentration, dtype=concentration.dtype)
    return jnp.clip(drawn, info.tiny, 1 - info.epsneg)


def _in_working_dtype(ctx: Context, fn: Any, *operands: Value) -> Value:
    dtype = working_dtype(ctx.out.dtype)
    wide = [cast(x, dtype) for x in operands]
    return cast(call_jax(ctx, fn, *wide, ctx.random_key()), ctx.out.dtype)


@lowers(aten.poisson.default)
def poisson(ctx: Context, x: Value, generator: Any = None) -> Value:
    return _in_working_dtype(ctx, _poisson, x)


@lowers(aten._standard_gamma.default)
def standard_gamma(ctx: Context, x: Value, generator: Any = None) -> Value:
    return _in_working_dtype(ctx, _gamma, x)


@lowers(aten.binomial.default)
def binomial(ctx: Context, count: Value, prob: Value, generator: Any = None) -> Value:
    return _in_working_dtype(ctx, _binomial, count, prob)


@lowers(aten._sample_dirichlet.default)
def sample_dirichlet(ctx: Context, x: Value, generator: Any = None) -> Value:
    return _in_working_dtype(ctx, _dirichlet, x)
