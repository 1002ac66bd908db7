"""Sampling of images at the positions of a grid (`grid_sample`), in JAX; its gradients by JAX's."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.table import Context, aten, lowers

_ZEROS, _BORDER, _REFLECTION = range(3)
_LINEAR, _NEAREST, _CUBIC = range(3)


@lowers(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(
    ctx: Context,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> Value:
    operands = (build.cast(v, computed_in(v)) for v in (x, grid))
    settings = {"mode": interpolation_mode, "padding": padding_mode, "align": align_corners}
    return build.cast(call_jax(ctx, _grid_sample, *operands, **settings), ctx.out.dtype)


@lowers(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    grid: Value,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    operands = (build.cast(v, computed_in(v)) for v in (grad, x, grid))
    settings = {"mode": interpolation_mode, "padding": padding_mode, "align": align_corners}
    grads = call_jax(ctx, _grid_sample_gradients, *operands, **settings)
    return tuple(
        build.cast(g, build.dtype_of(v)) if wanted else None
        for g, v, wanted in zip(grads, (x, grid), output_mask, strict=True)
    )


def _grid_sample_gradients(
    grad: jax.Array, x: jax.Array, grid: jax.Array, mode: int, padding: int, align: bool
) -> tuple[jax.Array, ...]:
    sample = functools.partial(_grid_sample, mode=mode, padding=padding, align=align)
    return jax.vjp(sample, x, grid)[1](grad)


def _grid_sample(x: jax.Array, grid: jax.Array, mode: int, padding: int, align: bool) -> jax.Array:
    """x[n, c, *sizes] at grid[n, *out, rank], whose last dim counts x's dims from the last."""
    sizes = x.shape[2:]
    positions = [
        _unnormalized(grid[..., len(sizes) - 1 - d], size, align) for d, size in enumerate(sizes)
    ]
    if mode == _CUBIC:
        return _sample_cubic(x, positions, padding, align)
    positions = [_padded(p, n, padding, align) for p, n in zip(positions, sizes, strict=True)]
    if mode == _NEAREST:
        return _read(x, [jnp.round(p) for p in positions])
    low = [jnp.floor(jax.lax.stop_gradient(p)) for p in positions]
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product((0, 1), repeat=len(sizes)):
        ways = [p - b if c else b + 1 - p for p, b, c in zip(positions, low, corner, strict=True)]
        value = _read(x, [b + c for b, c in zip(low, corner, strict=True)])
        total = total + value * math.prod(ways)[:, None]
    return total


def _sample_cubic(x: jax.Array, positions: list[jax.Array], padding: int, align: bool) -> jax.Array:
    """Sixteen neighbours; the padding rule moves each neighbour, not the position."""
    low = [jnp.floor(jax.lax.stop_gradient(p)) for p in positions]
    weights = [_cubic_weights(p - b) for p, b in zip(positions, low, strict=True)]
    total = jnp.zeros((), x.dtype)
    for taps in itertools.product(range(4), repeat=len(positions)):
        neighbours = [
            jnp.round(_padded(b + (t - 1), n, padding, align))
            for b, t, n in zip(low, taps, x.shape[2:], strict=True)
        ]
        weight = math.prod(w[t] for w, t in zip(weights, taps, strict=True))
        total = total + _read(x, neighbours) * weight[:, None]
    return total


def _cubic_weights(way: jax.Array, a: float = -0.75) -> list[jax.Array]:
    def near(d: jax.Array) -> jax.Array:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: jax.Array) -> jax.Array:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(way + 1), near(way), near(1 - way), far(2 - way)]


def _unnormalized(position: jax.Array, n: int, align: bool) -> jax.Array:
    """From -1..1 to elements; align puts the ends at the outer elements' centres."""
    return (position + 1) / 2 * (n - 1) if align else ((position + 1) * n - 1) / 2


def _padded(position: jax.Array, n: int, padding: int, align: bool) -> jax.Array:
    if padding == _ZEROS:
        return position
    if padding == _REFLECTION:
        position = _reflected(position, 0, n - 1) if align else _reflected(position, -0.5, n - 0.5)
    # Constants at the ends, so that the gradient stops there as torch's does. NaN goes to 0.
    return jnp.where(position > 0, jnp.where(position >= n - 1, n - 1, position), 0).astype(
        position.dtype
    )


def _reflected(position: jax.Array, low: float, high: float) -> jax.Array:
    span = high - low
    if span == 0:
        return jnp.zeros_like(position)
    away = jnp.where(position < low, low - position, position - low)
    turns = jnp.floor(jax.lax.stop_gradient(away) / span)
    rest = away - turns * span
    return jnp.where(turns % 2 == 0, rest + low, high - rest)


def _read(x: jax.Array, positions: list[jax.Array]) -> jax.Array:
    """x[n, c] at whole-numbered positions[n, *out]; zero outside of the image."""
    inside = functools.reduce(
        jnp.logical_and,
        [(p >= 0) & (p < n) for p, n in zip(positions, x.shape[2:], strict=True)],
    )
    index = tuple(jnp.where(inside, p, 0).astype(jnp.int32) for p in positions)
    values = jax.vmap(lambda image, *i: image[(slice(None), *i)])(x, *index)
    return jnp.where(inside[:, None], values, 0)
