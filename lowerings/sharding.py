"""Shardings, as the partitioner of XLA reads them: Shardy's attributes and constraints."""

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.table import Context, lowers

MESH = "mesh"  # the symbol of a module's one mesh


def declare_mesh(module: ir.Module, names: Sequence[str], sizes: Sequence[int]) -> None:
    """Name the axes of the devices that a module is for, in their order."""
    axes = [sdy.MeshAxisAttr.get(name, size) for name, size in zip(names, sizes, strict=True)]
    with ir.InsertionPoint.at_block_begin(module.body):
        sdy.MeshOp(MESH, sdy.MeshAttr.get(axes))


def sharding_attribute(axes: Sequence[Sequence[str]]) -> ir.Attribute:
    """The attribute for a tensor whose dimensions these axes divide."""
    dims = [
        sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(name) for name in names], is_closed=True)
        for names in axes
    ]
    return sdy.TensorShardingAttr.get(MESH, dims)


def constrain(x: Value, axes: Sequence[Sequence[str]]) -> Value:
    """A value that is divided so."""
    return sdy.ShardingConstraintOp(x, sharding_attribute(axes)).result


@lowers("xla.mark_sharding.default")
def mark_sharding(
    ctx: Context,
    x: Value,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: list[str],
    partition_spec: list[str],
    with_gradients: bool = False,
) -> Value:
    if ctx.target.partitions == 1:
        return x
    return constrain(x, [names.split(",") if names else [] for names in partition_spec])
