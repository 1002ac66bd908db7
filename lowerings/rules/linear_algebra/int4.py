"""Weights in int4 for the CPU: packed, and multiplied with rows."""

import torch

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.cpu import int4_weights
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.rules.linear_algebra.matmul import matrix_product
from xla_dynamo.lowerings.table import Context, aten, lowers


@lowers(aten._convert_weight_to_int4pack_for_cpu.default)
def _convert_weight_to_int4pack_for_cpu(ctx: Context, weight: Value, inner_k_tiles: int) -> Value:
    return int4_weights.packed(build.cast(weight, torch.uint8))


@lowers(aten._weight_int4pack_mm_for_cpu.default)
def _weight_int4pack_mm_for_cpu(
    ctx: Context, x: Value, weight: Value, group: int, scales: Value
) -> Value:
    """The product x @ weight.T, of weights with a scale and a zero for each group of a column."""
    found = call(ctx, "int4_product", x, weight, scales, group=group)
    if found is not None:
        return build.cast(found, ctx.out.dtype)
    wide = build.cast(int4_weights.as_floats(weight, scales, group), build.dtype_of(x))
    return matrix_product(ctx, x, build.transpose(wide, [1, 0]), ctx.out.dtype)
