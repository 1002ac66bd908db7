"""Layer, group and weight normalization, and their gradients.

Everything is computed in float32 for half types, and each result is rounded once to the dtype that
the graph promises for it: statistics of half inputs may be half or float32.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.rules.reductions.reductions import mean_over
from xla_dynamo.lowerings.table import Context, aten, lowers


def widened(*values: Value | None) -> list[Value | None]:
    """The values in the dtype of the computation."""
    return [None if v is None else build.cast(v, computed_in(v)) for v in values]


def as_promised(
    results: Sequence[Value | None], promised: Sequence[Any]
) -> tuple[Value | None, ...]:
    """Each result in the shape and dtype that the graph promises for it."""
    return tuple(
        r if r is None or p is None else build.cast(build.reshape(r, p.shape), p.dtype)
        for r, p in zip(results, promised, strict=True)
    )


def _along(x: Value, like: Value, dims: Sequence[int]) -> Value:
    """x, whose dimensions are the given ones of `like`, broadcast to like's shape and dtype."""
    x = build.cast(x, build.dtype_of(like))
    return build.broadcast_in_dim(x, build.shape_of(like), dims)


def moments(x: Value, dims: Sequence[int]) -> tuple[Value, Value]:
    """Mean and biased variance over dims, in two passes as torch's (no x**2 that cancels)."""
    kept = [d for d in range(build.rank_of(x)) if d not in dims]
    mean = mean_over(x, dims)
    centred = hlo.subtract(x, _along(mean, x, kept))
    return mean, mean_over(hlo.multiply(centred, centred), dims)


def reciprocal_std(variance: Value, eps: float) -> Value:
    return hlo.rsqrt(hlo.add(variance, build.full_like(variance, eps)))


def _standardize(x: Value, mean: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """(x - mean) * rstd, of statistics along dims."""
    return hlo.multiply(hlo.subtract(x, _along(mean, x, dims)), _along(rstd, x, dims))


def scale_and_shift(
    y: Value, weight: Value | None, bias: Value | None, dims: Sequence[int]
) -> Value:
    if weight is not None:
        y = hlo.multiply(y, _along(weight, y, dims))
    return y if bias is None else hlo.add(y, _along(bias, y, dims))


def _standardize_gradient(g: Value, y: Value, rstd: Value, dims: Sequence[int]) -> Value:
    """The gradient of y = _standardize(x) in x, of statistics along dims, given that in y."""
    over = [d for d in range(build.rank_of(g)) if d not in dims]
    centred = hlo.subtract(g, _along(mean_over(g, over), g, dims))
    slope = mean_over(hlo.multiply(g, y), over)
    return hlo.multiply(
        hlo.subtract(centred, hlo.multiply(y, _along(slope, y, dims))), _along(rstd, y, dims)
    )


# --- layers and groups -------------------------------------------------------------------------


@lowers(aten.native_layer_norm.default)
def native_layer_norm(
    ctx: Context,
    x: Value,
    normalized_shape: list[int],
    weight: Value | None,
    bias: Value | None,
    eps: float,
) -> tuple[Value | None, ...]:
    (x,) = widened(x)
    dims = list(range(build.rank_of(x)))
    outer, inner = dims[: -len(normalized_shape)], dims[-len(normalized_shape) :]
    mean, variance = moments(x, inner)
    rstd = reciprocal_std(variance, eps)
    y = scale_and_shift(_standardize(x, mean, rstd, outer), weight, bias, inner)
    return as_promised((y, mean, rstd), ctx.out)


@lowers(aten.native_layer_norm_backward.default)
def native_layer_norm_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    normalized_shape: list[int],
    mean: Value,
    rstd: Value,
    weight: Value | None,
    bias: Value | None,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    grad, x, mean, rstd = widened(grad, x, mean, rstd)
    dims = list(range(build.rank_of(x)))
    outer, inner = dims[: -len(normalized_shape)], dims[-len(normalized_shape) :]
    mean, rstd = (build.reshape(s, [build.shape_of(x)[d] for d in outer]) for s in (mean, rstd))
    y = _standardize(x, mean, rstd, outer)
    grad_y = scale_and_shift(grad, weight, None, inner)
    grads = (
        _standardize_gradient(grad_y, y, rstd, outer) if output_mask[0] else None,
        build.reduce(hlo.multiply(grad, y), outer, "sum") if output_mask[1] else None,
        build.reduce(grad, outer, "sum") if output_mask[2] else None,
    )
    return as_promised(grads, ctx.out)


@lowers(aten.native_group_norm.default)
def native_group_norm(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    N: int,  # noqa: N803
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[Value | None, ...]:
    (x,) = widened(build.reshape(x, [N, group, C // group, HxW]))
    mean, variance = moments(x, [2, 3])
    rstd = reciprocal_std(variance, eps)
    y = build.reshape(_standardize(x, mean, rstd, [0, 1]), [N, C, HxW])
    return as_promised((scale_and_shift(y, weight, bias, [1]), mean, rstd), ctx.out)


@lowers(aten.native_group_norm_backward.default)
def native_group_norm_backward(
    ctx: Context,
    grad: Value,
    x: Value,
    mean: Value,
    rstd: Value,
    weight: Value | None,
    N: int,  # noqa: N803
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    output_mask: list[bool],
) -> tuple[Value | None, ...]:
    split, flat = [N, group, C // group, HxW], [N, C, HxW]
    grad, x, mean, rstd = widened(build.reshape(grad, flat), build.reshape(x, split), mean, rstd)
    y = _standardize(x, mean, rstd, [0, 1])
    grad_y = build.reshape(scale_and_shift(grad, weight, None, [1]), split)
    by_channel = hlo.multiply(grad, build.reshape(y, flat))
    grads = (
        _standardize_gradient(grad_y, y, rstd, [0, 1]) if output_mask[0] else None,
        build.reduce(by_channel, [0, 2], "sum") if output_mask[1] else None,
        build.reduce(grad, [0, 2], "sum") if output_mask[2] else None,
    )
    return as_promised(grads, ctx.out)


# --- weights -----------------------------------------------------------------------------------


@lowers(aten._weight_norm_interface_backward.default)
def _weight_norm_interface_backward(
    ctx: Context, grad: Value, v: Value, g: Value, norms: Value, dim: int
) -> tuple[Value | None, ...]:
    grad, v, g, norms = widened(grad, v, g, norms)
    rank = build.rank_of(v)
    dim = build.normalize_dim(dim, rank)
    g, norms = (build.reshape(s, [build.shape_of(v)[dim]]) for s in (g, norms))
    over = [d for d in range(rank) if d != dim]
    grad_g = hlo.divide(build.reduce(hlo.multiply(grad, v), over, "sum"), norms)
    along_v = hlo.multiply(v, _along(hlo.divide(grad_g, norms), v, [dim]))
    grad_v = hlo.multiply(hlo.subtract(grad, along_v), _along(hlo.divide(g, norms), v, [dim]))
    return as_promised((grad_v, grad_g), ctx.out)
