"""Batched matrix products: a call of a kernel where that is faster, else a dot_general."""

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import computed_in, spread
from xla_dynamo.lowerings.builders.values import source_of
from xla_dynamo.lowerings.cpu.narrow_weights import narrow_product
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.table import Context

_HALF = (torch.float16, torch.bfloat16)


def product(
    ctx: Context,
    x: Value,
    y: Value,
    dtype: torch.dtype,
    *,
    bias: Value | None = None,
    transpose_x: bool = False,
    transpose_y: bool = False,
) -> Value:
    """The product [*stack, m, k] @ [*stack, k, n] in dtype, plus a bias of [n].

    Under `transpose_x` x comes as [*stack, k, m], under `transpose_y` y as [*stack, n, k].
    """
    rank, given = build.rank_of(x), (x, y)
    is_thin = not (transpose_x or transpose_y) and is_half_vector(ctx, x, y)
    wide = None if transpose_x or transpose_y else narrow_product(ctx, x, y)
    if wide is not None:
        return _with_bias(wide, bias, dtype)
    x, transpose_x = _without_transpose(x, transpose_x)
    y, transpose_y = _without_transpose(y, transpose_y)
    settings = {"dtype": dtype, "transpose_x": transpose_x, "transpose_y": transpose_y}
    found = call(ctx, "matrix_product", x, y, bias, **settings)
    if found is not None:
        return found
    if is_thin:
        if bias is None:
            return multiply_and_sum(*given, dtype)
        return _with_bias(multiply_and_sum(*given, torch.float32), bias, dtype)
    contract = ([rank - 2 if transpose_x else rank - 1], [rank - 1 if transpose_y else rank - 2])
    stack = list(range(rank - 2))
    if bias is None:
        return build.dot_general(x, y, contract, (stack, stack), dtype)
    wide = build.dot_general(x, y, contract, (stack, stack), computed_in(x))
    return _with_bias(wide, bias, dtype)


def _with_bias(wide: Value, bias: Value | None, dtype: torch.dtype) -> Value:
    """A product plus its bias, if it has one, rounded once."""
    if bias is not None:
        wide = hlo.add(*spread([wide, bias], build.dtype_of(wide)))
    return build.cast(wide, dtype)


def is_half_vector(ctx: Context, x: Value, y: Value) -> bool:
    """Whether a factor is a vector, one row at the left or one column, of a half type on a CPU."""
    if ctx.platform != "cpu" or build.dtype_of(x) not in _HALF:
        return False
    if build.rank_of(y) < 2:
        return True
    return build.shape_of(x)[-2] == 1 or build.shape_of(y)[-1] == 1


def multiply_and_sum(x: Value, y: Value, dtype: torch.dtype) -> Value:
    """A product as a fused multiplication and sum in float32.

    XLA:CPU widens a whole half-type matrix in memory before a matrix-vector dot; fused, it reads
    the matrix once (bench: bf16 matrix-vector).
    """
    if build.rank_of(y) < 2:
        x, y = spread([x, y], torch.float32)
        return build.cast(build.reduce(hlo.multiply(x, y), [build.rank_of(x) - 1], "sum"), dtype)
    rank = build.rank_of(x)
    swap = [*range(rank - 2), rank - 1, rank - 2]
    left = build.expand_dims(x, rank - 1)
    right = build.expand_dims(build.transpose(y, swap), rank - 2)
    left, right = spread([left, right], torch.float32)
    return build.cast(build.reduce(hlo.multiply(left, right), [rank], "sum"), dtype)


def _without_transpose(x: Value, is_transposed: bool) -> tuple[Value, bool]:
    """The source of x where x is a transpose of the last two dimensions, and whether it is one."""
    swapped = [*range(build.rank_of(x) - 2), build.rank_of(x) - 1, build.rank_of(x) - 2]
    source, permutation = source_of(x)
    return (source, not is_transposed) if permutation == swapped else (x, is_transposed)
