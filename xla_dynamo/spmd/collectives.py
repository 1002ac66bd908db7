"""Collectives by hand, for manual regions: what devices exchange there."""

from collections.abc import Sequence

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.runtime.replica_groups import groups_along
from xla_dynamo.spmd.current_mesh import mesh_or_current
from xla_dynamo.spmd.manual_regions import enable_manual_sharding
from xla_dynamo.spmd.partition_spec import Axis, axes_of

# One axis of the mesh or several, the major one first.
AxisNames = Axis | Sequence[Axis]
# Groups of device ids, of one size, each device of the mesh in one.
Groups = Sequence[Sequence[int]]

NOWHERE = -1  # the place of a device that is not in the mesh
# PyTorch/XLA's names of reductions, by torch's.
_REDUCTIONS = {"mul": "product", "and": "band", "or": "bor", "xor": "bxor"}


def all_reduce(
    x: torch.Tensor,
    reduce_type: str = "sum",
    axis: AxisNames | None = None,
    *,
    groups: Groups | None = None,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """Reduce the shards of each group's devices; all of them get the result.

    Args:
        x: the device's shard, in a manual region.
        reduce_type: "sum", "avg" (of integers towards zero), "product", "min", "max", "band", "bor"
            or "bxor"; also PyTorch/XLA's "mul", "and", "or" and "xor".
        axis: the axes of the mesh along which the devices of a group lie; all of them if neither
            this nor `groups` is given.
        groups: groups of device ids, of one size, with each device in one of them.
        mesh: the devices. If it is not given, those of the `shard_map` around, or the global mesh.

    Returns:
        A tensor of the shape and dtype of `x`.

    Raises:
        ShardingError: an axis is unknown, groups do not have each device once, the dtype has no
            such reduction, or this is not in a manual region.
    """
    reduce_type = _REDUCTIONS.get(reduce_type, reduce_type)
    return torch.ops.xla.all_reduce(x, reduce_type, *_groups(mesh, axis, groups))


def all_gather(
    x: torch.Tensor,
    dim: int = 0,
    axis: AxisNames | None = None,
    *,
    groups: Groups | None = None,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """The shards of a group's devices one behind the other along `dim`. See `all_reduce`."""
    return torch.ops.xla.all_gather(x, _dim_of(x, dim), *_groups(mesh, axis, groups))


def reduce_scatter(
    x: torch.Tensor,
    reduce_type: str = "sum",
    dim: int = 0,
    axis: AxisNames | None = None,
    *,
    groups: Groups | None = None,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """Reduce the shards of a group's devices; each gets its part of the result along `dim`.

    The size of `dim` must be divisible by that of the groups. See `all_reduce`.
    """
    reduce_type = _REDUCTIONS.get(reduce_type, reduce_type)
    group = _groups(mesh, axis, groups)
    return torch.ops.xla.reduce_scatter(x, reduce_type, _dim_of(x, dim), *group)


def all_to_all(
    x: torch.Tensor,
    split_dim: int,
    concat_dim: int,
    axis: AxisNames | None = None,
    *,
    groups: Groups | None = None,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """Send each device of a group a part of `x` along `split_dim`.

    What it gets from them it puts one behind the other along `concat_dim`. The size of `split_dim`
    must be divisible by that of the groups. See `all_reduce`.
    """
    group = _groups(mesh, axis, groups)
    dims = _dim_of(x, split_dim), _dim_of(x, concat_dim)
    return torch.ops.xla.all_to_all(x, *dims, *group)


def collective_broadcast(
    x: torch.Tensor,
    src: int = 0,
    axis: AxisNames | None = None,
    *,
    groups: Groups | None = None,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """The shard of a group's `src`-th device, on all of its devices. See `all_reduce`."""
    return torch.ops.xla.collective_broadcast(x, src, *_groups(mesh, axis, groups))


def collective_permute(
    x: torch.Tensor,
    pairs: Sequence[tuple[int, int]],
    axis: AxisNames | None = None,
    *,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """Send `x` from devices to others; those that get nothing have zeros.

    Args:
        x: the device's shard, in a manual region.
        pairs: from where and to where, each index once: indices along `axis` (`axis_index`), or
            device ids if it is not given.
        axis: as for `all_reduce`.
        mesh: as for `all_reduce`.

    Raises:
        ShardingError: a number is no index, or sends or gets twice; or as `all_reduce`.
    """
    mesh = mesh_or_current(mesh)
    rows, size = list(range(mesh.size())), mesh.size()
    if axis is None:
        pairs = [(_index(mesh, source), _index(mesh, target)) for source, target in pairs]
    else:
        rows, size = _groups(mesh, axis, None)
    flat = []
    for start in range(0, len(rows), size):
        for pair in pairs:
            flat += [rows[start + p] if 0 <= p < size else NOWHERE for p in pair]
    return torch.ops.xla.collective_permute(x, flat)


def axis_index(axis: AxisNames, *, mesh: Mesh | None = None) -> torch.Tensor:
    """The device's index along an axis or several, the major one first: int64, of no dimension."""
    mesh = mesh_or_current(mesh)
    _, size = _groups(mesh, axis, None)
    spec = [(axis,) if isinstance(axis, str | int) else tuple(axis)]
    return enable_manual_sharding(torch.arange(size), spec, mesh=mesh).reshape(())


def _dim_of(x: torch.Tensor, dim: int) -> int:
    """The number of a dimension that may be counted from behind."""
    if not -x.dim() <= dim < x.dim():
        raise ShardingError(
            f"a collective along dimension {dim} of a tensor of {x.dim()} dimensions: there is no "
            "such dimension"
        )
    return dim % x.dim()


def _groups(
    mesh: Mesh | None, axis: AxisNames | None, groups: Groups | None
) -> tuple[list[int], int]:
    """The indices in the mesh of each group's devices, and the size of a group.

    What is none is checked where the graph is compiled, with the user's line.
    """
    mesh = mesh_or_current(mesh)
    if groups is not None:
        if axis is not None:
            raise ShardingError("a collective takes an axis or groups, and not both")
        sizes = {len(group) for group in groups}
        indices = [_index(mesh, device) for group in groups for device in group]
        return indices if len(sizes) == 1 else [], max(*sizes, 1)
    axes = list(mesh.axis_names) if axis is None else axes_of(mesh, [axis])[0]
    for name in axes:
        if name not in mesh.axis_names or axes.count(name) > 1:
            return [], 1
    return groups_along(mesh.mesh_shape, mesh.axis_names, axes)


def _index(mesh: Mesh, device: int) -> int:
    return mesh.ids.index(device) if device in mesh.ids else NOWHERE
