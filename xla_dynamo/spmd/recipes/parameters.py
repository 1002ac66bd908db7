"""Mark the parameters of a module along one more axis of a mesh."""

from collections.abc import Callable

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime import marks
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.spmd.marking import mark_sharding


def shard_parameter(
    parameter: torch.Tensor, mesh: Mesh, axis: str, dim: int, name: str
) -> torch.Tensor:
    """Shard a dimension of a parameter by an axis, and the others as they are marked already.

    Args:
        parameter: of any shape.
        mesh: the devices.
        axis: the axis of the mesh.
        dim: the dimension.
        name: what errors call the parameter.

    Returns:
        The parameter.

    Raises:
        ShardingError: the dimension is not divisible, the axis shards another dimension already,
            or the parameter is marked for another mesh.
    """
    before = sharding_before(parameter, mesh, name)
    entry = before.axes[dim]
    if axis in entry:
        return parameter
    shape = tuple(parameter.shape)
    if any(axis in names for names in before.axes):
        raise ShardingError(
            f"the axis {axis!r} would shard dimension {dim} of {name}, of shape {shape}, and "
            f"shards another one already by {before}: clear_sharding takes that mark off"
        )
    wanted = Sharding(mesh, (*before.axes[:dim], (*entry, axis), *before.axes[dim + 1 :]))
    if shape[dim] % (shards := wanted.counts()[dim]):
        raise ShardingError(
            f"dimension {dim} of {name}, of shape {shape}, is not divisible by {shards}, the "
            f"number of shards that {', '.join(wanted.axes[dim])} of {mesh} would make of it: use "
            "a mesh with fewer devices along this axis, or leave the module out of the plan"
        )
    return mark_sharding(parameter, mesh, wanted.axes)


def shard_largest_dimension(
    parameter: torch.Tensor, mesh: Mesh, axis: str, name: str
) -> torch.Tensor:
    """Shard the largest of a parameter's dimensions that are divisible by an axis and unmarked.

    A parameter without such a dimension stays as it is, and so does one that the axis shards.

    Raises:
        ShardingError: the parameter is marked for another mesh.
    """
    before = sharding_before(parameter, mesh, name)
    if any(axis in names for names in before.axes):
        return parameter
    size, shards = parameter.shape, mesh.shape()[axis]
    free = [d for d, names in enumerate(before.axes) if not names and size[d] % shards == 0]
    if not free:
        return parameter
    largest: Callable[[int], int] = size.__getitem__
    return shard_parameter(parameter, mesh, axis, max(free, key=largest), name)


def sharding_before(parameter: torch.Tensor, mesh: Mesh, name: str) -> Sharding:
    """How a parameter is marked, for a recipe to add to.

    Raises:
        ShardingError: for another mesh.
    """
    before = marks.sharding_of(parameter) or Sharding(mesh, ((),) * parameter.dim())
    if before.mesh != mesh:
        raise ShardingError(
            f"{name}, of shape {tuple(parameter.shape)}, is marked for {before.mesh} and would be "
            f"sharded over {mesh}: use one mesh, of as many axes as both need"
        )
    return before
