"""Batched matrix products: a call of a kernel where that is faster, else a dot_general."""

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import computed_in, spread
from xla_dynamo.lowerings.builders.values import source_of
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.table import Context


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
    rank = build.rank_of(x)
    x, transpose_x = _without_transpose(x, transpose_x)
    y, transpose_y = _without_transpose(y, transpose_y)
    settings = {"dtype": dtype, "transpose_x": transpose_x, "transpose_y": transpose_y}
    found = call(ctx, "matrix_product", x, y, bias, **settings)
    if found is not None:
        return found
    contract = ([rank - 2 if transpose_x else rank - 1], [rank - 1 if transpose_y else rank - 2])
    stack = list(range(rank - 2))
    if bias is None:
        return build.dot_general(x, y, contract, (stack, stack), dtype)
    wide = build.dot_general(x, y, contract, (stack, stack), computed_in(x))
    return build.cast(hlo.add(*spread([wide, bias], build.dtype_of(wide))), dtype)


def _without_transpose(x: Value, is_transposed: bool) -> tuple[Value, bool]:
    """The source of x where x is a transpose of the last two dimensions, and whether it is one."""
    swapped = [*range(build.rank_of(x) - 2), build.rank_of(x) - 1, build.rank_of(x) - 2]
    source, permutation = source_of(x)
    return (source, not is_transposed) if permutation == swapped else (x, is_transposed)
