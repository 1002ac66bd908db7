"""Arithmetic of three operands, as in optimizers: the last sum is rounded with its product.

Eager's kernels are compiled to fused multiply-adds, and LLVM contracts the product and the sum of
one operator in the same way. Torch's decompositions are several operators, and each rounds.
"""

from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Number,
    Value,
    cast,
    compare,
    full_like,
    is_value,
    where,
)
from xla_dynamo.lowerings.builders.promotion import promote
from xla_dynamo.lowerings.table import Context, aten, lowers


@lowers(aten.addcmul.default)
def addcmul(ctx: Context, x: Value, y: Value, z: Value, *, value: Number = 1) -> Value:
    x, y, z = promote(ctx, x, y, z)
    return cast(hlo.add(x, hlo.multiply(_times(value, y), z)), ctx.out.dtype)


@lowers(aten.addcdiv.default)
def addcdiv(ctx: Context, x: Value, y: Value, z: Value, *, value: Number = 1) -> Value:
    x, y, z = promote(ctx, x, y, z)
    return cast(hlo.add(x, hlo.divide(_times(value, y), z)), ctx.out.dtype)


def _times(value: Number, y: Value) -> Value:
    return y if value == 1 else hlo.multiply(full_like(y, value), y)


@lowers(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(ctx: Context, x: Value, end: Value, weight: Value | Number) -> Value:
    if is_value(weight):
        x, end, weight = promote(ctx, x, end, weight)
    else:
        x, end = promote(ctx, x, end)
        weight = full_like(x, weight)
    distance = hlo.subtract(end, x)
    from_start = hlo.add(x, hlo.multiply(weight, distance))
    rest = hlo.subtract(full_like(weight, 1), weight)
    from_end = hlo.subtract(end, hlo.multiply(distance, rest))
    size = hlo.abs(weight)
    return cast(
        where(compare(size, full_like(size, 0.5), "LT"), from_start, from_end), ctx.out.dtype
    )
