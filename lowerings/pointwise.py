"""Elementwise operators: arithmetic, comparison, rounding, logic."""

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.build import Value, full_like
from xla_dynamo.lowerings.promotion import KIND, pointwise, promote
from xla_dynamo.lowerings.build import cast
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten

lowers(aten.relu.default)(pointwise(lambda x: hlo.maximum(x, full_like(x, 0))))
lowers(aten.mul.Tensor)(pointwise(hlo.multiply))
lowers(aten.cos.default)(pointwise(hlo.cosine, KIND.INT_TO_FLOAT))


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(ctx: Context, x: Value, other: Value, alpha: complex = 1) -> Value:
    x, other = promote(ctx, x, other)
    if alpha != 1:
        other = hlo.multiply(other, full_like(other, alpha))
    return cast(hlo.add(x, other), ctx.out.dtype)
