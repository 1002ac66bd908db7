"""Random bits, uniform numbers and permutations.

The key is an argument of the program, never a constant in it.

Bits are drawn in the shape of the result: on XLA:CPU a reshape after the generator takes four
times as long as the generator.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Number,
    Value,
    cast,
    compare,
    concatenate,
    dtype_of,
    full_like,
    iota,
    reshape,
    slice_dim,
    sort,
)
from xla_dynamo.lowerings.builders.dtypes import real_dtype, tensor_type
from xla_dynamo.lowerings.builders.promotion import spread
from xla_dynamo.lowerings.table import Context, aten, lowers

# Bits of the significand, the implied one included: torch's uniform numbers are k / 2**digits.
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


# Odd numbers that spread small ones over all bits: 2**64 over the golden ratio, and another.
_GOLDEN, _SPREAD = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


# --- draws that the distributions are made of --------------------------------------------------


def random_bits(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Uniform bits as torch.uint32 or torch.uint64."""
    return bits_of_key(ctx.random_key(), shape, dtype)


def bits_of_key(key: Value, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """The uniform bits that a ui64[2] key, a seed and the number of the draw, stands for.

    XLA takes the second word of a state for the offset in the stream where it begins: with the
    number there, draws would be each other's, shifted. So both words make the first.
    """
    seed, number = slice_dim(key, 0, 0, 1), slice_dim(key, 0, 1, 2)
    mixed = hlo.add(seed, hlo.multiply(number, full_like(number, _GOLDEN)))
    state = concatenate([mixed, full_like(mixed, 0)], 0)
    result = tensor_type(list(shape), dtype)
    algorithm = hlo.RngAlgorithmAttr.get("THREE_FRY")
    return hlo.RngBitGeneratorOp(state.type, result, algorithm, state).results[1]


def key_of_step(key: Value, step: Value) -> Value:
    """The key that a draw has in a step, an int64, of a loop."""
    seed, number = slice_dim(key, 0, 0, 1), slice_dim(key, 0, 1, 2)
    number = hlo.multiply(number, full_like(number, _SPREAD))
    return concatenate([seed, hlo.add(number, reshape(cast(step, torch.uint64), [1]))], 0)


def uniform_draws(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Uniform in [0, 1), a multiple of 2**-24 for float32, as torch's."""
    return _fraction(ctx, shape, dtype, _DIGITS[dtype], 0)


def open_uniform(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Uniform in (0, 1), symmetric about 1/2: neither end can make a logarithm infinite."""
    return _fraction(ctx, shape, dtype, _DIGITS[dtype] - 1, 0.5)


def _fraction(
    ctx: Context, shape: Sequence[int], dtype: torch.dtype, digits: int, offset: float
) -> Value:
    bits = torch.uint64 if dtype is torch.float64 else torch.uint32
    drawn = random_bits(ctx, shape, bits)
    spare = torch.iinfo(bits).bits - digits
    count = cast(hlo.shift_right_logical(drawn, full_like(drawn, spare)), dtype)
    if offset:
        count = hlo.add(count, full_like(count, offset))
    return hlo.multiply(count, full_like(count, 2.0**-digits))


def normal_draws(ctx: Context, shape: Sequence[int], dtype: torch.dtype) -> Value:
    """Standard normal; complex numbers have variance one, half of it in each part."""
    if dtype.is_complex:
        parts = [normal_draws(ctx, shape, real_dtype(dtype)) for _ in range(2)]
        return hlo.complex(*[hlo.multiply(p, full_like(p, math.sqrt(0.5))) for p in parts])
    u = open_uniform(ctx, shape, working_dtype(dtype))
    signed = hlo.subtract(hlo.add(u, u), full_like(u, 1))
    return cast(hlo.multiply(chlo.erf_inv(signed), full_like(u, math.sqrt(2))), dtype)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a distribution's formula is computed in.

    float32 for what fits, float64 for the rest (integers take torch's double).
    """
    if dtype in (torch.float16, torch.bfloat16, torch.float32):
        return torch.float32
    return torch.float64


def affine(x: Value, scale: Number | Value, shift: Number | Value) -> Value:
    """Return x * scale + shift in the dtype of x."""
    scale, shift = (spread([x, y], dtype_of(x))[1] for y in (scale, shift))
    return hlo.add(hlo.multiply(x, scale), shift)


# --- uniform and integers ----------------------------------------------------------------------


@lowers(aten.rand.default)
def rand(ctx: Context, size: Sequence[int], **options: Any) -> Value:
    dtype = ctx.out.dtype
    if dtype.is_complex:
        return hlo.complex(*[uniform_draws(ctx, size, real_dtype(dtype)) for _ in range(2)])
    return uniform_draws(ctx, size, dtype)


@lowers(aten.rand_like.default)
def rand_like(ctx: Context, x: Value, **options: Any) -> Value:
    return rand(ctx, ctx.out.shape)


@lowers(aten.uniform.default)
def uniform(ctx: Context, x: Value, from_: float = 0.0, to: float = 1.0, **kwargs: Any) -> Value:
    # `from` is no name in Python: as a keyword it comes in kwargs.
    low, high = kwargs.get("from", from_), to
    u, dtype = rand(ctx, ctx.out.shape), ctx.out.dtype
    if (low, high) == (0, 1):
        return u
    if dtype.is_complex:
        return affine(u, high - low, complex(low, low))
    drawn = affine(u, high - low, low)
    if low == high:
        return drawn
    return hlo.minimum(drawn, full_like(drawn, _below(high, dtype)))  # rounding may reach `high`


def _below(x: float, dtype: torch.dtype) -> float:
    """The largest number of a dtype that is less than x, subnormal numbers left out."""
    info, nearest = torch.finfo(dtype), float(torch.tensor(x, dtype=dtype))
    if nearest == 0:
        return -info.tiny
    if nearest < x:
        return nearest
    mantissa, exponent = math.frexp(nearest)
    return nearest - max(math.ldexp(info.eps / 2, exponent - (mantissa == 0.5)), info.tiny)


def integers(ctx: Context, shape: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Value:
    """Uniform integers in [low, high)."""
    span = high - low
    if span < 1 << 28:  # torch too takes 32 bits a number up to here
        wide = cast(random_bits(ctx, shape, torch.uint32), torch.uint64)
        drawn = hlo.multiply(wide, full_like(wide, span))
        drawn = hlo.shift_right_logical(drawn, full_like(drawn, 32))
    else:
        drawn = random_bits(ctx, shape, torch.uint64)
        if span < 1 << 64:
            drawn = hlo.remainder(drawn, full_like(drawn, span))
    signed = cast(drawn, torch.int64)
    return cast(hlo.add(signed, full_like(signed, low)), dtype)


@lowers(aten.randint.default)
def randint(ctx: Context, high: int, size: Sequence[int], **options: Any) -> Value:
    return integers(ctx, size, 0, high, ctx.out.dtype)


@lowers(aten.randint.low)
def randint_low(ctx: Context, low: int, high: int, size: Sequence[int], **options: Any) -> Value:
    return integers(ctx, size, low, high, ctx.out.dtype)


@lowers(aten.randint_like.default)
def randint_like(ctx: Context, x: Value, high: int, **options: Any) -> Value:
    return integers(ctx, ctx.out.shape, 0, high, ctx.out.dtype)


@lowers(aten.randint_like.low_dtype)
def randint_like_low(ctx: Context, x: Value, low: int, high: int, **options: Any) -> Value:
    return integers(ctx, ctx.out.shape, low, high, ctx.out.dtype)


@lowers(aten.randperm.default)
def randperm(ctx: Context, n: int, **options: Any) -> Value:
    # Random high halves over the numbers themselves, which break the rare ties: see sorting.py.
    drawn = random_bits(ctx, [n], torch.uint64)
    high = hlo.and_(drawn, full_like(drawn, ((1 << 32) - 1) << 32))
    packed = hlo.or_(high, iota([n], 0, torch.uint64))
    mixed = sort([packed], 0, lambda a, b: compare(a, b, "LT"), stable=False)[0]
    return cast(hlo.and_(mixed, full_like(mixed, (1 << 32) - 1)), ctx.out.dtype)


def _random(ctx: Context, low: int, high: int) -> Value:
    return integers(ctx, ctx.out.shape, low, high, ctx.out.dtype)


@lowers(aten.random.default)
def random(ctx: Context, x: Value, **options: Any) -> Value:
    dtype = ctx.out.dtype
    if dtype is torch.bool:
        return _random(ctx, 0, 2)
    if dtype.is_floating_point:  # every integer that the type holds exactly
        return _random(ctx, 0, (1 << _DIGITS[dtype]) + 1)
    return _random(ctx, 0, torch.iinfo(dtype).max + (dtype is not torch.int64))


@lowers(aten.random.to)
def random_to(ctx: Context, x: Value, to: int, **options: Any) -> Value:
    return _random(ctx, 0, to)


@lowers(getattr(aten.random, "from"))
def random_from(ctx: Context, x: Value, low: int, high: int | None, **options: Any) -> Value:
    if high is None:
        dtype = ctx.out.dtype
        high = (1 << _DIGITS[dtype]) + 1 if dtype.is_floating_point else torch.iinfo(dtype).max + 1
    return _random(ctx, low, high)
