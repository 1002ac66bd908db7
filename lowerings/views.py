"""Shape operators: views and copies that only move elements."""

import torch

from xla_dynamo.lowerings import build
from xla_dynamo.lowerings.build import Value
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten


@lowers(aten.permute.default)
def permute(ctx: Context, x: Value, dims: list[int]) -> Value:
    return build.transpose(x, build.normalize_dims(dims, build.rank_of(x)))
