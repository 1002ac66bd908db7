"""Data parallel: each device computes with its part of the batch, and gradients are summed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.marking import mark_sharding
from xla_dynamo.spmd.recipes.activations import map_tensors, shard_dimension
from xla_dynamo.spmd.recipes.axes import checked_axes, mesh_or_global
from xla_dynamo.spmd.recipes.forwards import wrap_forward


def data_parallel(
    module: torch.nn.Module, mesh: Mesh | None = None, axis: str | Sequence[str] = "data"
) -> torch.nn.Module:
    """Shard the batch where a module is called, and where it returns.

    Args:
        module: its parameters stay whole on each device, unless they are marked. The first
            dimension of the first tensor that it is called with is the batch, and so is that of
            each tensor, taken or returned, whose first dimension has this size.
        mesh: the devices; the global mesh, unless it is given.
        axis: the axis of the mesh that shards the batch, or several, the major one first.

    Returns:
        The module, whose forward marks activations in compiled regions; eager code is as before.
        `shard_batch` shards tensors before they are given, so that each device gets only its part.

    Raises:
        ShardingError: there is no mesh or it has no such axis.
    """
    mesh = mesh_or_global(mesh)
    axes = checked_axes(mesh, axis)

    def around(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        shard = batch_sharder(mesh, axes, (args, kwargs))
        args, kwargs = map_tensors(shard, (args, kwargs))
        return map_tensors(shard, forward(*args, **kwargs), in_place=True)

    wrap_forward(module, around)
    return module


def shard_batch(batch: Any, mesh: Mesh | None = None, axis: str | Sequence[str] = "data") -> Any:
    """Shard the tensors of a batch by their first dimension, before a compiled region takes them.

    Args:
        batch: a tensor, or tuples, lists and dicts of tensors. Scalars stay whole.
        mesh: the devices; the global mesh, unless it is given.
        axis: the axis of the mesh that shards the batch, or several, the major one first.

    Returns:
        The batch.

    Raises:
        ShardingError: there is no mesh, it has no such axis, or a first dimension is not divisible.
    """
    mesh = mesh_or_global(mesh)
    axes = checked_axes(mesh, axis)

    def shard(t: torch.Tensor) -> torch.Tensor:
        return mark_sharding(t, mesh, (axes,) + (None,) * (t.dim() - 1)) if t.dim() else t

    return map_tensors(shard, batch)


def batch_sharder(
    mesh: Mesh, axes: Sequence[str], call: Any
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that shards tensors which have the batch of a call as their first dimension."""
    size = _batch_size(call)

    def shard(t: torch.Tensor) -> torch.Tensor:
        is_batch = size is not None and t.dim() > 0 and t.shape[0] == size
        return shard_dimension(t, mesh, 0, axes) if is_batch else t

    return shard


def _batch_size(call: Any) -> int | None:
    """The first dimension of the first tensor that has one; None without such a tensor."""
    sizes: list[int] = []

    def note(t: torch.Tensor) -> torch.Tensor:
        if t.dim():
            sizes.append(t.shape[0])
        return t

    map_tensors(note, call)
    return sizes[0] if sizes else None
