"""Batched matrix products: a call of oneDNN where that is faster, else StableHLO's dot_general."""

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.promotion import computed_in, spread
from xla_dynamo.lowerings.builders.values import source_of
from xla_dynamo.lowerings.cpu import onednn
from xla_dynamo.lowerings.table import Context


def product(
    ctx: Context,
    x: Value,
    y: Value,
    dtype: torch.dtype,
    *,
    bias: Value | None = None,
    x_is_turned: bool = False,
    y_is_turned: bool = False,
) -> Value:
    """The product [*stack, m, k] @ [*stack, k, n] in dtype, plus a bias of [n].

    A factor that is turned comes as [*stack, k, m] or [*stack, n, k].
    """
    rank = build.rank_of(x)
    x, x_is_turned = _unturned(x, x_is_turned)
    y, y_is_turned = _unturned(y, y_is_turned)
    if onednn.takes_product(ctx, x, y, dtype, x_is_turned, y_is_turned):
        return onednn.matrix_product(x, y, bias, dtype, x_is_turned, y_is_turned)
    contract = ([rank - 2 if x_is_turned else rank - 1], [rank - 1 if y_is_turned else rank - 2])
    stack = list(range(rank - 2))
    if bias is None:
        return build.dot_general(x, y, contract, (stack, stack), dtype)
    wide = build.dot_general(x, y, contract, (stack, stack), computed_in(x))
    return build.cast(hlo.add(*spread([wide, bias], build.dtype_of(wide))), dtype)


def _unturned(x: Value, is_turned: bool) -> tuple[Value, bool]:
    """Drop a transpose of the last two dimensions; returns x, and whether to transpose it."""
    swapped = [*range(build.rank_of(x) - 2), build.rank_of(x) - 1, build.rank_of(x) - 2]
    source, permutation = source_of(x)
    return (source, not is_turned) if permutation == swapped else (x, is_turned)
