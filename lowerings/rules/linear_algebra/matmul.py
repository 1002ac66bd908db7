"""Products of matrices and vectors: mm, bmm, their sums with a third tensor, dot and mv."""

import math

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Number, Value
from xla_dynamo.lowerings.builders.promotion import computed_in, spread
from xla_dynamo.lowerings.cpu.products import is_half_vector, multiply_and_sum, product
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.table import Context, aten, lowers

_OF_BLAS = (torch.float32, torch.float64, torch.complex64, torch.complex128)
# Fewer multiplications for one matrix of a stack torch does by itself.
_FEWEST_OF_BLAS = 400


def matrix_product(ctx: Context, x: Value, y: Value, dtype: torch.dtype) -> Value:
    """The product [m, k] @ [k, n], with or without a batch dimension, or [m, k] @ [k], in dtype."""
    if build.rank_of(y) < 2:
        if is_half_vector(ctx, x, y):
            return multiply_and_sum(x, y, dtype)
        return build.dot_general(x, y, ([build.rank_of(x) - 1], [0]), dtype=dtype)
    return product(ctx, x, y, dtype)


def blend(
    ctx: Context,
    added: Value,
    product: Value,
    beta: Number,
    alpha: Number,
    *,
    by_blas: bool,
) -> Value:
    """The sum beta * added + alpha * product in the product's dtype, rounded once.

    With beta 0 torch does not read `added`, so that its NaN does not spread; nor does BLAS read
    the factors of the product with alpha 0, which torch's own kernels do.
    """
    if alpha == 0 and by_blas:
        product = build.full_like(product, 0)
    elif alpha != 1:
        product = hlo.multiply(product, build.full_like(product, alpha))
    if beta != 0:
        added, product = spread([added, product], build.dtype_of(product))
        if beta != 1:
            added = hlo.multiply(added, build.full_like(added, beta))
        product = hlo.add(added, product)
    return build.cast(product, ctx.out.dtype)


def _is_by_blas(x: Value, y: Value) -> bool:
    """Whether torch has BLAS multiply on the CPU."""
    dtype = build.dtype_of(x)
    if build.rank_of(y) == 1:
        return dtype in _OF_BLAS and not dtype.is_complex
    each = math.prod(build.shape_of(x)[-2:]) * build.shape_of(y)[-1]
    return dtype in _OF_BLAS and (build.rank_of(y) == 2 or each >= _FEWEST_OF_BLAS)


@lowers(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
def mm(ctx: Context, x: Value, y: Value) -> Value:
    return matrix_product(ctx, x, y, ctx.out.dtype)


@lowers(aten._int_mm.default)
def _int_mm(ctx: Context, x: Value, y: Value) -> Value:
    found = call(ctx, "integer_product", x, y)
    return matrix_product(ctx, x, y, ctx.out.dtype) if found is None else found


@lowers(aten.mm.dtype, aten.bmm.dtype)
def mm_dtype(ctx: Context, x: Value, y: Value, out_dtype: torch.dtype) -> Value:
    return matrix_product(ctx, x, y, out_dtype)


@lowers(aten.vdot.default)
def vdot(ctx: Context, x: Value, y: Value) -> Value:
    if build.dtype_of(x).is_complex:
        x = hlo.complex(hlo.real(x), hlo.negate(hlo.imag(x)))
    return matrix_product(ctx, x, y, ctx.out.dtype)


@lowers(aten.addmm.default, aten.addmv.default, aten.baddbmm.default)
def addmm(
    ctx: Context, added: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1
) -> Value:
    is_bias = build.rank_of(added) == 1 and build.shape_of(added) == build.shape_of(y)[-1:]
    is_sum = is_bias and beta == alpha == 1 and build.dtype_of(added) is ctx.out.dtype
    if is_sum and build.rank_of(y) == 2:
        return product(ctx, x, y, ctx.out.dtype, bias=added)
    total = matrix_product(ctx, x, y, computed_in(x))
    return blend(ctx, added, total, beta, alpha, by_blas=_is_by_blas(x, y))


@lowers(aten.addmm.dtype, aten.baddbmm.dtype)
def addmm_dtype(
    ctx: Context,
    added: Value,
    x: Value,
    y: Value,
    out_dtype: torch.dtype,
    *,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value:
    return addmm(ctx, added, x, y, beta=beta, alpha=alpha)


@lowers(aten.addbmm.default)
def addbmm(
    ctx: Context, added: Value, x: Value, y: Value, *, beta: Number = 1, alpha: Number = 1
) -> Value:
    product = build.dot_general(x, y, ([0, 2], [0, 1]), dtype=computed_in(x))
    return blend(ctx, added, product, beta, alpha, by_blas=build.dtype_of(x) in _OF_BLAS)


@lowers(aten._trilinear.default)
def _trilinear(
    ctx: Context,
    i1: Value,
    i2: Value,
    i3: Value,
    expand1: list[int],
    expand2: list[int],
    expand3: list[int],
    sumdim: list[int],
    unroll_dim: int = 1,
) -> Value:
    expanded = zip((i1, i2, i3), (expand1, expand2, expand3), strict=True)
    factors = [build.expand_dims(x, *sorted(dims)) for x, dims in expanded]
    x, y, z = spread(factors, computed_in(i1))
    product = hlo.multiply(hlo.multiply(x, y), z)
    return build.cast(build.reduce(product, sumdim, "sum"), ctx.out.dtype)


@lowers(aten._weight_int8pack_mm.default)
def _weight_int8pack_mm(ctx: Context, x: Value, weight: Value, scales: Value) -> Value:
    """The product x @ weight.T * scales, of int8 weights with one scale a row."""
    weight = build.cast(weight, build.dtype_of(x))
    product = matrix_product(ctx, x, build.transpose(weight, [1, 0]), computed_in(x))
    product = hlo.multiply(*spread([product, scales], build.dtype_of(product)))
    return build.cast(product, ctx.out.dtype)
