"""Padding: constant, reflection, replication, and their gradients."""

from collections.abc import Callable, Sequence

from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Number, Value
from xla_dynamo.lowerings.builders.promotion import computed_in
from xla_dynamo.lowerings.table import Context, aten, lowers


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(ctx: Context, x: Value, pad: list[int], value: Number = 0) -> Value:
    low, high = [0] * build.rank_of(x), [0] * build.rank_of(x)
    for dim, before, after in _by_dim(x, pad):
        low[dim], high[dim] = before, after
    return build.pad(x, value, low, high)


def _by_dim(x: Value, padding: Sequence[int]) -> list[tuple[int, int, int]]:
    """Torch's flat list, which begins at the last dimension, as (dim, before, after)."""
    last = build.rank_of(x) - 1
    pairs = zip(padding[::2], padding[1::2], strict=True)
    return [(last - i, before, after) for i, (before, after) in enumerate(pairs)]


def _reflected(x: Value, dim: int, start: int, stop: int) -> Value:
    return build.reverse(build.slice_dim(x, dim, start, stop), [dim])


def _reflect(x: Value, dim: int, before: int, after: int) -> Value:
    n = build.shape_of(x)[dim]
    left, right = _reflected(x, dim, 1, before + 1), _reflected(x, dim, n - 1 - after, n - 1)
    return build.concatenate([left, x, right], dim)


def _replicate(x: Value, dim: int, before: int, after: int) -> Value:
    n = build.shape_of(x)[dim]

    def repeated(edge: int, times: int) -> Value:
        shape = [times if d == dim else size for d, size in enumerate(build.shape_of(x))]
        return build.broadcast_to(build.slice_dim(x, dim, edge, edge + 1), shape)

    return build.concatenate([repeated(0, before), x, repeated(n - 1, after)], dim)


@lowers(aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default)
def reflection_pad(ctx: Context, x: Value, padding: list[int]) -> Value:
    return _extend(x, padding, _reflect)


@lowers(
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default
)
def replication_pad(ctx: Context, x: Value, padding: list[int]) -> Value:
    return _extend(x, padding, _replicate)


def _extend(
    x: Value, padding: Sequence[int], extend: Callable[[Value, int, int, int], Value]
) -> Value:
    """Extend each dimension, then crop those with negative amounts, as torch's index maps do."""
    for dim, before, after in _by_dim(x, padding):
        x = extend(x, dim, max(before, 0), max(after, 0))
        end = build.shape_of(x)[dim] + min(after, 0)
        x = build.slice_dim(x, dim, max(-before, 0), end)
    return x


def _reflect_backward(grad: Value, dim: int, before: int, after: int) -> Value:
    size = build.shape_of(grad)[dim]
    n = size - before - after
    left, right = _reflected(grad, dim, 0, before), _reflected(grad, dim, before + n, size)
    total = build.slice_dim(grad, dim, before, before + n)
    total = hlo.add(total, _placed(left, dim, 1, n))
    return hlo.add(total, _placed(right, dim, n - 1 - after, n))


def _replicate_backward(grad: Value, dim: int, before: int, after: int) -> Value:
    size = build.shape_of(grad)[dim]
    n = size - before - after

    def summed(start: int, stop: int) -> Value:
        return build.expand_dims(
            build.reduce(build.slice_dim(grad, dim, start, stop), [dim], "sum"), dim
        )

    total = build.slice_dim(grad, dim, before, before + n)
    total = hlo.add(total, _placed(summed(0, before), dim, 0, n))
    return hlo.add(total, _placed(summed(before + n, size), dim, n - 1, n))


def _placed(x: Value, dim: int, start: int, length: int) -> Value:
    """X from `start` of a dimension of `length`, zeros elsewhere."""
    return build.pad_dim(x, dim, start, length - start - build.shape_of(x)[dim])


@lowers(
    aten.reflection_pad1d_backward.default,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default,
)
def reflection_pad_backward(
    ctx: Context, grad_output: Value, x: Value, padding: list[int]
) -> Value:
    return _unextend(ctx, grad_output, padding, _reflect_backward)


@lowers(
    aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d_backward.default,
)
def replication_pad_backward(
    ctx: Context, grad_output: Value, x: Value, padding: list[int]
) -> Value:
    return _unextend(ctx, grad_output, padding, _replicate_backward)


def _unextend(
    ctx: Context,
    grad: Value,
    padding: Sequence[int],
    backward: Callable[[Value, int, int, int], Value],
) -> Value:
    """The transpose of `_extend`: what was cropped gets zeros, what was repeated adds up."""
    if 0 in ctx.out.shape:
        return build.full(ctx.out.shape, 0, ctx.out.dtype)
    grad = build.cast(grad, computed_in(grad))
    for dim, before, after in _by_dim(grad, padding):
        cropped = max(-before, 0)
        grad = _placed(grad, dim, cropped, build.shape_of(grad)[dim] + cropped + max(-after, 0))
        grad = backward(grad, dim, max(before, 0), max(after, 0))
    return build.cast(grad, ctx.out.dtype)
