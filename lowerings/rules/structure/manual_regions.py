"""The ends of manual regions: values that become each device's shard, and shards that become whole.

The rules write calls that stand for the ends, and the pass `gather_manual_regions` replaces them.
"""

import math
from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import ShardingError
from xla_dynamo.lowerings.builders.build import tensor_type
from xla_dynamo.lowerings.builders.shardings import (
    ENTRY,
    EXIT,
    REGION_SHARDING,
    axes_of_entries,
    sharding_attribute,
)
from xla_dynamo.lowerings.builders.values import Value, dtype_of, shape_of
from xla_dynamo.lowerings.table import Context, lowers


@lowers("xla.full_to_shard.default")
def full_to_shard(
    ctx: Context,
    x: Value,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: list[str],
    partition_spec: list[str],
) -> Value:
    if ctx.target.partitions == 1:
        return x
    axes = axes_of_entries(partition_spec)
    sizes = dict(zip(axis_names, mesh_shape, strict=True))
    shape = []
    for dim, (size, names) in enumerate(zip(shape_of(x), axes, strict=True)):
        count = math.prod(sizes[name] for name in names)
        if size % count:
            raise ShardingError(
                f"dimension {dim} of a tensor of shape {shape_of(x)} goes into a manual region "
                f"split by {', '.join(names)} into {count} shards, and {size} is not divisible "
                f"by {count}: pad it, or shard another dimension"
            )
        shape.append(size // count)
    return _end(ENTRY, x, shape, axes)


@lowers("xla.shard_to_full.default")
def shard_to_full(
    ctx: Context,
    x: Value,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: list[str],
    partition_spec: list[str],
) -> Value:
    if ctx.target.partitions == 1:
        return x
    axes = axes_of_entries(partition_spec)
    sizes = dict(zip(axis_names, mesh_shape, strict=True))
    shape = [
        size * math.prod(sizes[name] for name in names)
        for size, names in zip(shape_of(x), axes, strict=True)
    ]
    return _end(EXIT, x, shape, axes)


def _end(name: str, x: Value, shape: list[int], axes: Sequence[Sequence[str]]) -> Value:
    call = hlo.CustomCallOp([tensor_type(shape, dtype_of(x))], [x], ir.StringAttr.get(name))
    call.attributes[REGION_SHARDING] = sharding_attribute(axes)
    return call.results[0]
