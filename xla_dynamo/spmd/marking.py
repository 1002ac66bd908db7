"""Mark tensors with shardings: an operator in a compiled region, a note elsewhere."""

import sys

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime import marks
from xla_dynamo.runtime.clients import tensors_on
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.spmd.operators import mark_in_graph
from xla_dynamo.spmd.partition_spec import PartitionSpec, axes_of, check_spec
from xla_dynamo.torch_private import is_function_wrapper, is_tracing_here


def mark_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec) -> torch.Tensor:
    """Shard a tensor over a mesh.

    Compiled graphs that read a marked tensor are partitioned over its mesh, and hold a shard of it
    on each device. Its gradient is sharded as suits the program.

    Args:
        t: the tensor. In a compiled region any; outside, a parameter, a buffer or an input.
        mesh: the devices.
        partition_spec: for each dimension the axis of the mesh that shards it, by name or number,
            a tuple of several, the major one first, or None.

    Returns:
        The marked tensor: outside of compiled regions `t` itself. In a compiled region what comes
        after the mark may read either.

    Raises:
        ShardingError: the spec has another rank or unknown axes (where the graph is compiled, for a
            mark in a compiled region); or, outside of compiled regions, a dimension is not
            divisible by what shards it.
    """
    return _marked(t, mesh, partition_spec, False)


def mark_sharding_with_gradients(
    t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec
) -> torch.Tensor:
    """`mark_sharding` for a tensor and its gradient, which is sharded in the same way.

    Raises:
        ShardingError: as `mark_sharding`.
    """
    return _marked(t, mesh, partition_spec, True)


def clear_sharding(t: torch.Tensor) -> torch.Tensor:
    """Take a tensor's mark off; returns the tensor."""
    marks.clear(t)
    if (tensors := tensors_on(t.device.type)) is not None:
        tensors.mark(t, None)
    return t


def sharding_of(t: torch.Tensor) -> Sharding | None:
    """The sharding that a tensor is marked with outside of compiled regions; None without one.

    A tensor of the device 'xla' that has no mark of its own is computed, if it is pending, and has
    the sharding that its program gave it.
    """
    tensors = tensors_on(t.device.type)
    marked = marks.sharding_of(t)
    return tensors.sharding_of(t) if marked is None and tensors is not None else marked


def expect_marks() -> None:
    """Let everything that is compiled from now on look at marks; what was before does not."""
    if not marks.were_ever_there():
        marks.expect()
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()


def _marked(t: torch.Tensor, mesh: Mesh, spec: PartitionSpec, with_gradients: bool) -> torch.Tensor:
    traced = is_tracing_here()
    if not traced:
        check_spec(t, mesh, spec)
    axes = axes_of(mesh, spec)
    if traced:  # checked where the graph is compiled
        return mark_in_graph(t, mesh, axes, with_gradients)
    sharding = Sharding(mesh, tuple(tuple(names) for names in axes))
    sharding.check(t.dim())
    _check_tensor(t)
    tensors = tensors_on(t.device.type)
    if tensors is None:
        _check_sizes(t, sharding)
    expect_marks()
    if tensors is not None:
        tensors.mark(t, sharding)
    marks.mark(t, sharding)
    if tensors is not None and with_gradients:
        return mark_in_graph(t, mesh, axes, True)
    return t


def _check_tensor(t: torch.Tensor) -> None:
    """Raise ShardingError for tensors without memory that could be sharded."""
    why = ""
    if is_function_wrapper(t):
        why = "it is inside a transform of torch.func: mark what the transform is given"
    elif t.layout is not torch.strided or t.is_quantized or t.is_nested:
        why = f"its layout is {t.layout}, its dtype {t.dtype}: only dense tensors are sharded"
    elif t.device.type == "meta":
        why = "it is on the device meta: give it memory first, by to_empty()"
    if why:
        raise ShardingError(f"a tensor of {t.dim()} dimensions cannot be marked, since {why}")


def _check_sizes(t: torch.Tensor, sharding: Sharding) -> None:
    """Raise ShardingError unless a tensor outside of compiled regions is evenly sharded."""
    for dim, (size, count) in enumerate(zip(t.shape, sharding.counts(), strict=True)):
        if size % count:
            raise ShardingError(
                f"dimension {dim} of a tensor of shape {tuple(t.shape)} is split by "
                f"{', '.join(sharding.axes[dim])} into {count} shards, and {size} is not divisible "
                f"by {count}: pad it, shard another dimension, or mark it inside the compiled "
                "region"
            )
