"""Discrete Fourier transforms."""

import math
from collections.abc import Sequence

from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Value,
    cast,
    full_like,
    rank_of,
    shape_of,
    transpose,
)
from xla_dynamo.lowerings.table import Context, aten, lowers
from xla_dynamo.torch_private import invert_perm

_DIMS_A_PASS = 3  # of one stablehlo.fft


def _one_pass(x: Value, dims: Sequence[int], kind: str, sizes: Sequence[int]) -> Value:
    """A stablehlo.fft, which wants its dims last; `sizes` are those of the real side."""
    order = [d for d in range(rank_of(x)) if d not in dims] + list(dims)
    done = hlo.fft(transpose(x, order), hlo.FftTypeAttr.get(kind), list(sizes))
    return transpose(done, invert_perm(order))


def _complex_passes(x: Value, dims: Sequence[int], forward: bool) -> Value:
    for start in range(0, len(dims), _DIMS_A_PASS):
        some = dims[start : start + _DIMS_A_PASS]
        x = _one_pass(x, some, "FFT" if forward else "IFFT", [shape_of(x)[d] for d in some])
    return x


def _scaled(x: Value, sizes: Sequence[int], normalization: int, done: bool) -> Value:
    """Scale by torch's norm mode, over whether StableHLO has `done` a division by the count."""
    count = math.prod(sizes)
    factor = (1.0, 1 / math.sqrt(count), 1 / count)[normalization] * (count if done else 1)
    return x if factor == 1 else hlo.multiply(x, full_like(x, factor))


@lowers(aten._fft_c2c.default)
def fft_c2c(ctx: Context, x: Value, dim: Sequence[int], normalization: int, forward: bool) -> Value:
    dims = [d % rank_of(x) for d in dim]
    sizes = [shape_of(x)[d] for d in dims]
    return _scaled(_complex_passes(x, dims, forward), sizes, normalization, done=not forward)


@lowers(aten._fft_r2c.default)
def fft_r2c(
    ctx: Context, x: Value, dim: Sequence[int], normalization: int, onesided: bool
) -> Value:
    dims = [d % rank_of(x) for d in dim]
    if not onesided:
        return fft_c2c(ctx, cast(x, ctx.out.dtype), dims, normalization, forward=True)
    sizes = [shape_of(x)[d] for d in dims]
    half = _one_pass(x, dims[-1:], "RFFT", sizes[-1:])
    done = _complex_passes(half, dims[:-1], forward=True)
    return _scaled(done, sizes, normalization, done=False)


@lowers(aten._fft_c2r.default)
def fft_c2r(
    ctx: Context, x: Value, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    dims = [d % rank_of(x) for d in dim]
    sizes = [*[shape_of(x)[d] for d in dims[:-1]], last_dim_size]
    half = _complex_passes(x, dims[:-1], forward=False)
    done = _one_pass(half, dims[-1:], "IRFFT", sizes[-1:])
    return _scaled(done, sizes, normalization, done=True)
