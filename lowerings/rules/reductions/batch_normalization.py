"""Batch normalization in the forms that ATen has: with, without and with new running statistics."""

import math

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.rules.reductions.normalization import (
    as_promised,
    moments,
    reciprocal_std,
    scale_and_shift,
    widened,
)
from xla_dynamo.lowerings.table import Context, aten, lowers, refuses


def _batch_norm(
    x: Value, weight: Value | None, bias: Value | None, mean: Value, rstd: Value
) -> Value:
    """Normalize channels by one multiply and add an element, as torch's kernel does."""
    (scale,) = widened(rstd)
    if weight is not None:
        scale = hlo.multiply(scale, build.cast(weight, build.dtype_of(scale)))
    shift = hlo.negate(hlo.multiply(build.cast(mean, build.dtype_of(scale)), scale))
    if bias is not None:
        shift = hlo.add(shift, build.cast(bias, build.dtype_of(scale)))
    return scale_and_shift(x, scale, shift, [1])


def _updated(running: Value | None, batch: Value, momentum: float) -> Value | None:
    if running is None:
        return None
    running = build.cast(running, build.dtype_of(batch))
    return hlo.add(
        hlo.multiply(running, build.full_like(running, 1 - momentum)),
        hlo.multiply(batch, build.full_like(batch, momentum)),
    )


def _train(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    momentum: float,
    eps: float,
) -> list[Value | None]:
    """The normalized x, its mean and reciprocal deviation, and both running statistics."""
    (x,) = widened(x)
    over = [0, *range(2, build.rank_of(x))]
    mean, variance = moments(x, over)
    rstd = reciprocal_std(variance, eps)
    n = math.prod([build.shape_of(x)[d] for d in over])
    correction = n / (n - 1) if n != 1 else math.inf
    unbiased = hlo.multiply(variance, build.full_like(variance, correction))
    return [
        _batch_norm(x, weight, bias, mean, rstd),
        mean,
        rstd,
        _updated(running_mean, mean, momentum),
        _updated(running_var, unbiased, momentum),
    ]


def _infer(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    eps: float,
) -> list[Value | None]:
    """The normalized x and the statistics used, which eager leaves empty on the CPU."""
    x, mean, variance = widened(x, running_mean, running_var)
    rstd = reciprocal_std(variance, eps)
    y = _batch_norm(x, weight, bias, mean, rstd)
    promised = ctx.out[1]
    if promised is not None and promised.numel() == 0:
        mean = rstd = build.full([0], 0, promised.dtype)
    return [y, mean, rstd]


@lowers(aten._native_batch_norm_legit_functional.default)
def _native_batch_norm_legit_functional(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    if training:
        results = _train(x, weight, bias, running_mean, running_var, momentum, eps)
    else:
        results = _infer(ctx, x, weight, bias, running_mean, running_var, eps)
        results += [running_mean, running_var]
    return as_promised(results, ctx.out)


@lowers(aten._batch_norm_with_update_functional.default)
def _batch_norm_with_update_functional(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    y, mean, rstd, *running = _train(x, weight, bias, running_mean, running_var, momentum, eps)
    reserve = build.full([0], 0, torch.uint8)  # what cuDNN would keep for its backward
    return as_promised((y, mean, rstd, reserve, *running), ctx.out)


@lowers(aten._native_batch_norm_legit_no_training.default)
def _native_batch_norm_legit_no_training(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    return as_promised(_infer(ctx, x, weight, bias, running_mean, running_var, eps), ctx.out)


@lowers(aten._batch_norm_no_update.default)
def _batch_norm_no_update(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value,
    running_var: Value,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    results = _infer(ctx, x, weight, bias, running_mean, running_var, eps)
    return as_promised((*results, build.full([0], 0, torch.uint8)), ctx.out)


@lowers(aten._native_batch_norm_legit.no_stats)
def _native_batch_norm_legit_no_stats(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    return as_promised(_train(x, weight, bias, None, None, momentum, eps)[:3], ctx.out)


@lowers(aten._native_batch_norm_legit.default, aten.native_batch_norm.default)
def _native_batch_norm_legit(
    ctx: Context,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Value | None, ...]:
    if training:
        return as_promised(_train(x, weight, bias, None, None, momentum, eps)[:3], ctx.out)
    return as_promised(_infer(ctx, x, weight, bias, running_mean, running_var, eps), ctx.out)


@refuses(aten._native_batch_norm_legit.default, aten.native_batch_norm.default)
def writes_statistics(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    *_: float,
) -> str | None:
    """AOTAutograd makes them functional, but not where they write into `out=`."""
    if training and running_mean is not None:
        return "it changes its running statistics in place"
    return None
