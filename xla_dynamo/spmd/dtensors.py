"""`DTensor`s of processes and marked tensors of one process: each made of the other.

A `DTensor` lives in many processes, of which each has a shard. A marked tensor lives in one
process, which has all of it, and its devices get the shards.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import get_backend
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.placement_types import Placement

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd.marking import mark_sharding, sharding_of
from xla_dynamo.spmd.placements import (
    convert_partition_spec_to_placements,
    convert_placements_to_partition_spec,
    mesh_from_device_mesh,
)


def xla_distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh | Mesh,
    placements: Sequence[Placement] | None = None,
) -> torch.Tensor:
    """`distribute_tensor` for the devices of one process: `mark_sharding` by placements.

    Args:
        tensor: as for `mark_sharding`.
        device_mesh: a mesh of PJRT devices: a `DeviceMesh` of the type "xla", or a `Mesh`.
        placements: `Shard(dim)` or `Replicate()` for each axis of the mesh. Without, each device
            has all of it.

    Returns:
        The marked tensor; outside of compiled regions `tensor` itself.

    Raises:
        ShardingError: the placements are not as many as the axes, or of another kind; the tensor is
            a DTensor; or as `mark_sharding`.
    """
    mesh = mesh_from_device_mesh(device_mesh)
    if isinstance(tensor, DTensor):
        raise ShardingError("this tensor is a DTensor already: from_dtensor makes a marked tensor")
    axes = len(mesh.mesh_shape)
    if placements is None:
        placements = [Replicate()] * axes
    if len(placements) != axes:
        raise ShardingError(
            f"{mesh} has {axes} axes, and {len(placements)} placements were given for a tensor of "
            f"shape {tuple(tensor.shape)}: give one for each axis"
        )
    spec = convert_placements_to_partition_spec(placements, tensor.dim())
    return mark_sharding(tensor, mesh, spec)


def xla_distribute_module(
    module: torch.nn.Module,
    device_mesh: DeviceMesh | Mesh,
    partition_fn: Callable[[str, torch.nn.Module, Any], None] | None = None,
    input_fn: Callable[[torch.nn.Module, Any, Any], Any] | None = None,
    output_fn: Callable[[torch.nn.Module, Any, Any], Any] | None = None,
) -> torch.nn.Module:
    """`distribute_module` for the devices of one process.

    Args:
        module: the module. Parameters that nobody marks are whole on each device.
        device_mesh: as for `xla_distribute_tensor`.
        partition_fn: is called with the name of each submodule, itself and `device_mesh`, and marks
            its parameters, as with `xla_distribute_tensor`.
        input_fn: is called with the module, its positional arguments and the `Mesh` before each
            forward, and may return others.
        output_fn: is called with the module, its result and the `Mesh` after each forward, and may
            return another.

    Returns:
        The module.

    Raises:
        ShardingError: `input_fn` or `output_fn` does not take three arguments.
    """
    for name, fn in {"input_fn": input_fn, "output_fn": output_fn}.items():
        if fn is not None and len(inspect.signature(fn).parameters) != 3:
            raise ShardingError(f"{name} takes three arguments: a module, values, and the mesh")
    if partition_fn is not None:
        for name, submodule in module.named_modules():
            partition_fn(name, submodule, device_mesh)
    mesh = mesh_from_device_mesh(device_mesh)  # Dynamo cannot trace a DeviceMesh of the type "xla"
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, args: input_fn(m, args, mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, _, result: output_fn(m, result, mesh))
    return module


def to_dtensor(tensor: torch.Tensor, device_mesh: DeviceMesh) -> DTensor:
    """The `DTensor` of a marked tensor, whose local tensor is the shard of this process.

    Each process calls it with the same tensor; no data is moved between them. The local tensor may
    share the memory of the tensor.

    Args:
        tensor: a tensor; without a mark, each process has all of it.
        device_mesh: the mesh of processes, of the shape and with the names of the mark's mesh.

    Raises:
        ShardingError: the meshes differ, the mesh is of the type "xla", which has no processes, or
            placements cannot express the mark.
    """
    if device_mesh.device_type == "xla":
        raise ShardingError(
            "a DTensor has a shard in each process, and a DeviceMesh of the type 'xla' is one of "
            "the devices of one process: there, the marked tensor is what xla_distribute_tensor "
            "gives. Take a mesh of processes, of the type 'cpu' or 'cuda'"
        )
    placements: Sequence[Placement] = [Replicate()] * device_mesh.ndim
    sharding = sharding_of(tensor)
    if sharding is not None:
        _check_alike(sharding.mesh, device_mesh)
        placements = convert_partition_spec_to_placements(sharding.axes, sharding.mesh)
    whole = tensor.detach().requires_grad_(tensor.requires_grad)
    return distribute_tensor(whole, device_mesh, placements, src_data_rank=None)


def from_dtensor(dtensor: DTensor, mesh: DeviceMesh | Mesh | None = None) -> torch.Tensor:
    """The marked tensor of a `DTensor`: all of it, put together from all processes.

    Each process calls it.

    Args:
        dtensor: it stays as it is, and shares no gradient.
        mesh: the PJRT devices, in the shape of the DTensor's mesh. Without, those that have the
            ranks of its processes as their ids.

    Returns:
        A new tensor of the DTensor's shape, with the mark that its placements mean.

    Raises:
        ShardingError: a placement is partial; a dimension is not divisible; the meshes differ in
            shape; or the process group is a fake one, which moves no data.
    """
    spec = convert_placements_to_partition_spec(dtensor.placements, dtensor.dim())
    own = dtensor.device_mesh
    for axis, placement in enumerate(dtensor.placements):
        if placement.is_shard() and get_backend(own.get_group(axis)) == "fake":
            raise ShardingError(
                f"the shards of a DTensor of shape {tuple(dtensor.shape)} are in processes that "
                f"axis {axis} of {own} only pretends to have: its process group is a fake one"
            )
    devices = mesh_from_device_mesh(own if mesh is None else mesh)
    if devices.mesh_shape != tuple(own.shape):
        raise ShardingError(f"{devices} has not the shape {tuple(own.shape)} of {own}")
    whole = dtensor.detach().full_tensor()
    return mark_sharding(whole, devices, spec).requires_grad_(dtensor.requires_grad)


def _check_alike(mesh: Mesh, device_mesh: DeviceMesh) -> None:
    names = device_mesh.mesh_dim_names or mesh.axis_names
    if mesh.mesh_shape != tuple(device_mesh.shape) or mesh.axis_names != names:
        raise ShardingError(
            f"the tensor is sharded over {mesh}, and {device_mesh} has another shape or other names"
        )
