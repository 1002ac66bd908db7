"""dtype conversions and copies: _to_copy, clone, copies, bit views."""

from typing import Any

import torch

from xla_dynamo.lowerings.build import Value, broadcast_to, cast
from xla_dynamo.lowerings.table import Context, lowers

aten = torch.ops.aten


@lowers(
    aten.clone.default,
    aten.contiguous.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
def same(ctx: Context, x: Value, memory_format: torch.memory_format | None = None) -> Value:
    return x  # values have no strides here: the memory format is the output layout's affair


@lowers(aten._to_copy.default)
def to_copy(ctx: Context, x: Value, **to: Any) -> Value:
    return cast(x, ctx.out.dtype)


@lowers(aten.copy.default)
def copy(ctx: Context, x: Value, src: Value, non_blocking: bool = False) -> Value:
    return broadcast_to(cast(src, ctx.out.dtype), ctx.out.shape)
