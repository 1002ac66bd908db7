"""Shardings as Shardy writes them: attributes that name the axes of a module's one mesh."""

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy

from xla_dynamo.lowerings.builders.operation_names import call_target

MESH = "mesh"  # the symbol of a module's one mesh
SHARDING = "sdy.sharding"  # the attribute of arguments, results and operations
_UNCONSTRAINED = "?"  # `runtime.mesh.UNCONSTRAINED`
# The calls that stand for the ends of a manual region until the pass `gather_manual_regions`
# replaces them, and their attribute with the sharding of the whole value.
ENTRY, EXIT = "xla_dynamo.full_to_shard", "xla_dynamo.shard_to_full"
REGION_SHARDING = "xla_dynamo.sharding"


def is_end_of_region(op: ir.Operation) -> bool:
    """Whether an operation is a call that stands for an end of a manual region."""
    return call_target(op) in (ENTRY, EXIT)


def declare_mesh(module: ir.Module, names: Sequence[str], sizes: Sequence[int]) -> None:
    """Name the axes of the devices that a module is for, in their order."""
    axes = [sdy.MeshAxisAttr.get(name, size) for name, size in zip(names, sizes, strict=True)]
    with ir.InsertionPoint.at_block_begin(module.body):
        sdy.MeshOp(MESH, sdy.MeshAttr.get(axes))


def mesh_axes(module: ir.Module) -> dict[str, int]:
    """The axes of a module's mesh by name, in their order, with their sizes."""
    (mesh,) = (op for op in module.body.operations if isinstance(op, sdy.MeshOp))
    axes = map(sdy.MeshAxisAttr, sdy.MeshAttr(mesh.attributes["mesh"]).axes)
    return {axis.name: axis.size for axis in axes}


def sharding_attribute(
    axes: Sequence[Sequence[str]], replicated_axes: Sequence[str] = ()
) -> ir.Attribute:
    """The attribute for a tensor whose dimensions these axes shard.

    Unconstrained dimensions may be sharded by further axes, but not by the replicated ones.
    """
    dims = [
        sdy.DimensionShardingAttr.get([], is_closed=False)
        if list(names) == [_UNCONSTRAINED]
        else sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get(n) for n in names], is_closed=True)
        for names in axes
    ]
    replicated = [sdy.AxisRefAttr.get(name) for name in replicated_axes]
    return sdy.TensorShardingAttr.get(MESH, dims, replicated)


def axes_of_attribute(sharding: ir.Attribute) -> tuple[tuple[str, ...], ...] | None:
    """The axes that shard each dimension; None where parts of an axis do."""
    of_dims = map(sdy.DimensionShardingAttr, sdy.TensorShardingAttr(sharding).dimension_shardings)
    dims = [list(map(sdy.AxisRefAttr, dim.axes)) for dim in of_dims]
    if any(axis.sub_axis_info is not None for axes in dims for axis in axes):
        return None
    return tuple(tuple(axis.name for axis in axes) for axes in dims)


def shardings_of(op: ir.Operation) -> list[ir.Attribute]:
    """The shardings of an operation's results, if it has any."""
    if "out_sharding" in op.attributes:  # of Shardy's collectives
        return [op.attributes["out_sharding"]]
    if SHARDING not in op.attributes:
        return []
    return list(sdy.TensorShardingPerValueAttr(op.attributes[SHARDING]).shardings)


def axes_of_entries(partition_spec: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """The axes that shard each dimension, from the entries of a graph's operator."""
    return tuple(map(axes_of_entry, partition_spec))


def axes_of_entry(entry: str) -> tuple[str, ...]:
    """The axes that an entry names, as in "data,model"; none in an empty one."""
    return tuple(entry.split(",")) if entry else ()
