"""Arithmetic: sums, products, quotients, remainders, powers."""

import math

import jax
import jax.numpy as jnp
import torch
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import UnsupportedOperator
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import (
    Number,
    Value,
    cast,
    compare,
    divide,
    dtype_of,
    full,
    full_like,
    is_nonzero,
    shape_of,
    where,
)
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.builders.promotion import (
    KIND,
    pointwise,
    pointwise_in_jax,
    promote,
    spread,
)
from xla_dynamo.lowerings.rules.elementwise.comparisons import is_inf
from xla_dynamo.lowerings.rules.elementwise.pointwise import reciprocal, sqrt
from xla_dynamo.lowerings.rules.elementwise.rounding import truncate
from xla_dynamo.lowerings.table import Context, aten, lowers


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(ctx: Context, x: Value, other: Value | Number, alpha: Number = 1) -> Value:
    x, other = promote(ctx, x, other, rounds_numbers=_rounds_numbers(ctx))
    return cast(build.add(x, _scaled(ctx, other, alpha)), ctx.out.dtype)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(ctx: Context, x: Value, other: Value | Number, alpha: Number = 1) -> Value:
    if ctx.out.dtype is torch.bool:  # a mask and a number; of two masks Dynamo says so
        raise UnsupportedOperator("eager torch subtracts no booleans: use `^` or logical_xor")
    x, other = promote(ctx, x, other, rounds_numbers=_rounds_numbers(ctx))
    return cast(hlo.subtract(x, _scaled(ctx, other, alpha)), ctx.out.dtype)


def _rounds_numbers(ctx: Context) -> bool:
    """Whether eager's sums have numbers in a half type, if the result has; CUDA's have not."""
    return ctx.platform == "cpu"


def _scaled(ctx: Context, x: Value, alpha: Number) -> Value:
    if alpha == 1:
        return x
    dtype = ctx.out.dtype if _rounds_numbers(ctx) else dtype_of(x)
    return hlo.multiply(x, cast(full(shape_of(x), alpha, dtype), dtype_of(x)))


lowers(aten.mul.Tensor, aten.mul.Scalar)(pointwise(hlo.multiply))
# By name: torch registers its prims when they are first used, and older ones have no fma.
lowers("prims.fma.default")(pointwise(lambda x, y, z: hlo.add(hlo.multiply(x, y), z)))
lowers(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor, aten.true_divide.Scalar)(
    pointwise(divide, KIND.INT_TO_FLOAT)
)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div(ctx: Context, x: Value, other: Value | Number, rounding_mode: str | None = None) -> Value:
    kind = KIND.DEFAULT if rounding_mode else KIND.INT_TO_FLOAT
    x, other = promote(ctx, x, other, kind=kind)
    rounded = {None: divide, "trunc": _divide_truncated, "floor": floor_divide}
    return cast(rounded[rounding_mode](x, other), ctx.out.dtype)


def _divide_truncated(x: Value, y: Value) -> Value:
    if not dtype_of(x).is_floating_point:
        return _whole_quotient(x, y)
    return truncate(divide(x, y))


def _whole_quotient(x: Value, y: Value) -> Value:
    """Whole numbers by others, towards zero; all bits are set where y is zero, as XLA has it.

    XLA divides numbers that it knows by the processor, which ends the process where one is zero.
    """
    if is_nonzero(y):
        return hlo.divide(x, y)
    zero = _is_zero(y)
    return where(zero, hlo.not_(full_like(x, 0)), hlo.divide(x, where(zero, full_like(y, 1), y)))


def _rest(x: Value, y: Value) -> Value:
    """C's remainder; x where whole numbers are divided by zero, as XLA has it."""
    if dtype_of(x).is_floating_point or is_nonzero(y):
        return hlo.remainder(x, y)
    zero = _is_zero(y)
    return where(zero, x, hlo.remainder(x, where(zero, full_like(y, 1), y)))


def floor_divide(x: Value, y: Value) -> Value:
    """Python's x // y, with torch's result where y is zero: x / y of floats."""
    dtype = dtype_of(x)
    if not dtype.is_signed:
        return _whole_quotient(x, y)
    if not dtype.is_floating_point:
        quotient = _whole_quotient(x, y)
        return where(_wrong_side(_rest(x, y), y), _minus_one(quotient), quotient)
    # The exact multiple of y below x, not the floor of a rounded quotient: 1 // 0.1 is 9.
    rest = hlo.remainder(x, y)
    multiple = divide(hlo.subtract(x, rest), y)
    multiple = where(_wrong_side(rest, y), _minus_one(multiple), multiple)
    nearest = hlo.floor(multiple)
    half = full_like(x, 0.5)
    up = compare(hlo.subtract(multiple, nearest), half, "GT")
    nearest = where(up, hlo.add(nearest, full_like(x, 1)), nearest)
    return where(_is_zero(y), hlo.divide(x, y), nearest)


def remainder(x: Value, y: Value) -> Value:
    """Python's x % y: zero or of y's sign."""
    rest = _rest(x, y)
    if not dtype_of(x).is_signed:
        return rest
    return where(_wrong_side(rest, y), hlo.add(rest, y), rest)


def _wrong_side(rest: Value, y: Value) -> Value:
    """Where C's remainder is not Python's: it is not zero and has the sign of the dividend."""
    zero = full_like(y, 0)
    differs = hlo.xor(compare(rest, zero, "LT"), compare(y, zero, "LT"))
    return hlo.and_(compare(rest, zero, "NE"), differs)


def _minus_one(x: Value) -> Value:
    return hlo.subtract(x, full_like(x, 1))


def _is_zero(x: Value) -> Value:
    return compare(x, full_like(x, 0), "EQ")


lowers(aten.remainder.Tensor, aten.remainder.Scalar, aten.remainder.Scalar_Tensor)(
    pointwise(remainder, rounds_numbers=True)
)
lowers(aten.fmod.Tensor, aten.fmod.Scalar)(pointwise(_rest, rounds_numbers=True))


def _power_of_integers(x: jax.Array, exponent: jax.Array) -> jax.Array:
    """x**exponent with wrap-around, by squaring; hlo.power is wrong from an exponent of 64 on."""

    def multiply(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, ...]:
        result, base, rest = state
        return jnp.where(rest & 1 == 1, result * base, result), base * base, rest >> 1

    start = (jnp.ones_like(x), x, jnp.maximum(exponent, 0))
    result = jax.lax.while_loop(lambda state: jnp.any(state[2] != 0), multiply, start)[0]
    if not jnp.issubdtype(x.dtype, jnp.signedinteger):
        return result
    inverse = jnp.where(jnp.abs(x) == 1, jnp.where(exponent & 1 == 1, x, 1), 0)
    return jnp.where(exponent < 0, inverse, result)


@lowers(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def pow_(ctx: Context, x: Value | Number, exponent: Value) -> Value:
    x, exponent = promote(ctx, x, exponent, kind=KIND.BOOL_TO_LONG, rounds_numbers=True)
    return cast(_power(ctx, x, exponent), ctx.out.dtype)


def _power(ctx: Context, x: Value, exponent: Value) -> Value:
    dtype = dtype_of(x)
    if dtype.is_floating_point or dtype.is_complex:
        return hlo.power(x, exponent)
    return call_jax(ctx, _power_of_integers, x, exponent)


@lowers(aten.pow.Tensor_Scalar)
def pow_scalar(ctx: Context, x: Value, exponent: Number) -> Value:
    x, power = promote(ctx, x, exponent, kind=KIND.BOOL_TO_LONG, rounds_numbers=True)
    special = _POWERS.get(exponent)  # type: ignore[arg-type]
    whole = not dtype_of(x).is_floating_point and not dtype_of(x).is_complex
    if special is None or (whole and exponent not in (2, 3)):
        return cast(_power(ctx, x, power), ctx.out.dtype)
    return cast(special(x), ctx.out.dtype)


def _square(x: Value) -> Value:
    return hlo.multiply(x, x)


# Not only faster: pow(-inf, 0.5) is inf and sqrt(-inf), which is what torch computes, is NaN.
_POWERS = {
    0.5: sqrt,
    2: _square,
    3: lambda x: hlo.multiply(_square(x), x),
    -0.5: lambda x: reciprocal(sqrt(x)),
    -1: reciprocal,
    -2: lambda x: reciprocal(_square(x)),
}
lowers(aten.atan2.default)(pointwise(hlo.atan2, KIND.INT_TO_FLOAT))


def hypot(x: Value, y: Value) -> Value:
    """sqrt(x**2 + y**2) without overflow; infinite where either is, even beside a NaN."""
    x, y = hlo.abs(x), hlo.abs(y)
    large, small = hlo.maximum(x, y), hlo.minimum(x, y)
    zero, one = full_like(x, 0), full_like(x, 1)
    ratio = hlo.divide(small, where(compare(large, zero, "EQ"), one, large))
    length = hlo.multiply(large, hlo.sqrt(hlo.add(one, hlo.multiply(ratio, ratio))))
    return where(hlo.or_(is_inf(x), is_inf(y)), full_like(x, math.inf), length)


lowers(aten.hypot.default)(pointwise(hypot, rounds_numbers=True))


def _gcd(a: jax.Array, b: jax.Array) -> jax.Array:
    """Euclid's algorithm; jnp.gcd never ends where one of the two is the least integer."""

    def divide(pair: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, b = pair
        rest = jax.lax.rem(a, jnp.where(b == 0, 1, b))
        return jnp.where(b == 0, a, b), jnp.where(b == 0, 0, rest)

    start = (jnp.abs(b), jnp.abs(a))
    return jax.lax.while_loop(lambda pair: jnp.any(pair[1] != 0), divide, start)[0]


def _lcm(a: jax.Array, b: jax.Array) -> jax.Array:
    dtype = a.dtype
    if dtype.itemsize < 4:  # as C promotes them: the sign is dropped before what does not fit
        a, b = a.astype(jnp.int32), b.astype(jnp.int32)
    gcd = _gcd(a, b)
    return jnp.abs(jax.lax.div(a, jnp.where(gcd == 0, 1, gcd)) * b).astype(dtype)


lowers(aten.gcd.default)(pointwise_in_jax(_gcd))
lowers(aten.lcm.default)(pointwise_in_jax(_lcm))


@lowers(aten.nextafter.default)
def nextafter(ctx: Context, x: Value, other: Value) -> Value:
    # Not promoted: the neighbour is one of the result's own dtype.
    return chlo.next_after(*spread([x, other], ctx.out.dtype))


@lowers(aten.ldexp.Tensor)
def ldexp(ctx: Context, x: Value, other: Value) -> Value:
    x, other = promote(ctx, x, other, kind=KIND.INT_TO_FLOAT)
    if dtype_of(x).is_complex:
        return cast(hlo.multiply(x, hlo.power(full_like(other, 2), other)), ctx.out.dtype)
    # In two steps, as 2**-130 is subnormal where 1024 * 2**-130 is not. XLA would make them one.
    half = hlo.floor(hlo.multiply(other, full_like(other, 0.5)))
    first = hlo.multiply(x, hlo.power(full_like(x, 2), half))
    second = hlo.power(full_like(x, 2), hlo.subtract(other, half))
    return cast(hlo.multiply(*hlo.optimization_barrier([first, second])), ctx.out.dtype)


@lowers(aten.frexp.Tensor)
def frexp(ctx: Context, x: Value) -> tuple[Value, Value]:
    (x,) = promote(ctx, x)
    mantissa, exponent = call_jax(ctx, jnp.frexp, x)
    return cast(mantissa, ctx.out[0].dtype), cast(exponent, torch.int32)
