"""Names of `torch_xla.distributed.spmd`: a sharded tensor is an ordinary one with a mark."""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.tensor import DTensor

import xla_dynamo
from xla_dynamo import spmd
from xla_dynamo.spmd.operators import mark_in_graph
from xla_dynamo.spmd.partition_spec import axes_of
from xla_dynamo.torch_private import pytree
from xla_dynamo.torch_xla.forms.meshes import Mesh
from xla_dynamo.torch_xla.forms.sharded_tensors import mark, wrapped
from xla_dynamo.torch_xla.forms.xla_model import optimization_barrier_

# Whether the package is there that draws pictures of shards in the terminal.
RICH_ENABLED = importlib.util.find_spec("rich") is not None
PartitionSpec: TypeAlias = tuple[tuple[int | str, ...] | int | str | None, ...]


def mark_sharding(t: torch.Tensor, mesh: spmd.Mesh, partition_spec: Any) -> torch.Tensor:
    """`xla_dynamo.spmd.mark_sharding`: returns the tensor itself, outside of compiled regions."""
    return mark(t, mesh, partition_spec)


def annotate_custom_sharding(t: torch.Tensor, mesh: spmd.Mesh, partition_spec: Any) -> torch.Tensor:
    """Tell the program that a tensor is sharded otherwise where it is used from here on.

    Its mark stays: that is how its elements lie behind the program.

    Raises:
        ShardingError: the spec has another rank, or unknown axes.
    """
    sharding = spmd.ShardingSpec(mesh, tuple(partition_spec)).sharding()
    sharding.check(t.dim())
    with torch.no_grad():
        t.copy_(mark_in_graph(t.detach(), mesh, [list(axes) for axes in sharding.axes], False))
    return t


def wrap_as_sharded_tensor(
    t: torch.Tensor, mesh_shape: Any = None, partition_spec: Any = None
) -> torch.Tensor:
    """The tensor itself, marked over all devices if both others are given."""
    return wrapped(t, mesh_shape, partition_spec)


def wrap_if_sharded(x: Any) -> Any:
    """The value itself."""
    return x


def unwrap_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """The tensor itself."""
    return t


class MarkShardingFunction:
    """What marks a tensor of a program, and its gradient likewise."""

    @staticmethod
    def apply(torch_tensor: torch.Tensor, mesh: spmd.Mesh, partition_spec: Any) -> torch.Tensor:
        """`mark_sharding_with_gradients`: a new tensor; the given one keeps its mark, or none."""
        axes = [list(names) for names in axes_of(mesh, partition_spec)]
        return mark_in_graph(torch_tensor, mesh, axes, True)


# --- linear layers ------------------------------------------------------------------------------


class XLAPatchedLinear:
    """A linear function whose program keeps the dimensions of the input apart, as any here does."""

    @staticmethod
    def apply(
        input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`torch.nn.functional.linear`, with its gradients and under autocast."""
        return torch.nn.functional.linear(input, weight, bias)


def xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """What a linear layer makes of an input."""
    return XLAPatchedLinear.apply(input, m.weight, m.bias)


class EinsumLinear(nn.Linear):
    """A linear layer that `xla_patched_nn_linear_forward` computes."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The product with the weight, plus the bias."""
        return xla_patched_nn_linear_forward(self, input)


def apply_xla_patch_to_nn_linear(module: nn.Module, *_: Any) -> nn.Module:
    """The module itself: linear layers keep batch and sequence apart in any case."""
    return module


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Compute the gradients of a module at once where its backward ends.

    What the backward of earlier modules computes is another program then, so that XLA does not
    keep or fuse all gradients together.
    """

    def barrier(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        found = [p.grad for p in module.parameters() if p.grad is not None]
        found += [g for g in grad_input if isinstance(g, torch.Tensor)]
        optimization_barrier_(found)

    m.register_full_backward_hook(barrier)


def convert_to_xla_mesh(dt_mesh: Any) -> Mesh:
    """The mesh of a `DeviceMesh`, whose numbers are the ids of PJRT devices.

    Raises:
        ShardingError: a name of an axis is no identifier.
    """
    mesh = spmd.mesh_from_device_mesh(dt_mesh)
    return Mesh(mesh.ids, mesh.mesh_shape, mesh.axis_names)


def convert_to_xla_partition_spec(tensor: torch.Tensor, placements: Sequence[Any]) -> Any:
    """The partition spec that says for a tensor the same as placements.

    Raises:
        ShardingError: a placement is partial, or shards a dimension that is not there.
    """
    return spmd.convert_placements_to_partition_spec(placements, tensor.dim())


def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: Any, placements: Sequence[Any] | None = None
) -> torch.Tensor:
    """A tensor on the device 'xla', sharded by placements: itself, if it is there already.

    Raises:
        ShardingError: as `xla_dynamo.spmd.xla_distribute_tensor`.
    """
    is_moved = not (tensor.is_meta or isinstance(tensor, DTensor))
    return spmd.xla_distribute_tensor(
        tensor.to("xla") if is_moved else tensor, device_mesh, placements
    )


def with_xla(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, once the device exists."""
    xla_dynamo.device()
    return func


def shard_as(a: Any, b: Any) -> tuple[Any, Any]:
    """Mark the tensors of one tree as those of another are marked, whichever has a mark.

    Raises:
        ValueError: the trees differ.
    """
    (left, of_a), (right, of_b) = pytree.tree_flatten(a), pytree.tree_flatten(b)
    if of_a != of_b:
        raise ValueError(f"shard_as was given {of_a} and {of_b}")
    for one, other in zip(left, right, strict=True):
        found = spmd.sharding_of(one), spmd.sharding_of(other)
        if found[0] is None and found[1] is not None:
            _mark_as(one, other)
        elif found[0] is not None and found[1] is None:
            _mark_as(other, one)
    return a, b


def _mark_as(tensor: torch.Tensor, like: torch.Tensor) -> None:
    sharding = spmd.sharding_of(like)
    assert sharding is not None
    spmd.mark_sharding(tensor, sharding.mesh, tuple(names or None for names in sharding.axes))
