"""Marks, which say how a value is sharded, to constraints that XLA's partitioner reads."""

from jax.extend.mlir.dialects import sdy

from xla_dynamo.lowerings.builders.shardings import (
    axes_of_entries,
    axes_of_entry,
    sharding_attribute,
)
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.table import Context, lowers


@lowers("xla.mark_sharding.default")
def mark_sharding(
    ctx: Context,
    x: Value,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: list[str],
    partition_spec: list[str],
    with_gradients: bool = False,
    replicated_axes: str = "",
) -> Value:
    if ctx.target.partitions == 1:
        return x
    sharding = sharding_attribute(axes_of_entries(partition_spec), axes_of_entry(replicated_axes))
    return sdy.ShardingConstraintOp(x, sharding).result
