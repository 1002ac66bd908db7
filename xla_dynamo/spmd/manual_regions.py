"""Manual regions: functions of each device's shards, in a program that XLA partitions."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Mesh
from xla_dynamo.spmd import manual_operators
from xla_dynamo.spmd.current_mesh import enter, leave, mesh_or_current
from xla_dynamo.spmd.forward_mode import refuse_forward_mode
from xla_dynamo.spmd.marking import expect_marks
from xla_dynamo.spmd.partition_spec import PartitionSpec, axes_of
from xla_dynamo.torch_private import is_tracing_here

_numbers = itertools.count()
# How a tree of tensors is sharded: a spec for each tensor.
Specs = Any
assert manual_operators


def shard_map(
    fn: Callable[..., Any], mesh: Mesh, in_specs: Sequence[Specs], out_specs: Specs
) -> Callable[..., Any]:
    """A function that runs `fn` on each device of a mesh, with the device's shards of the inputs.

    As JAX's `shard_map`. Inside, a tensor is the shard that the device has, and devices exchange
    data by the collectives of `spmd`. Gradients are those of the whole computation.

    Args:
        fn: takes shards, in the sequence of `in_specs`, and returns a tensor, or a list, tuple or
            dictionary of tensors. A tensor that it reads otherwise is whole on each device, and
            gets no gradient: pass it.
        mesh: the devices, all of them.
        in_specs: for each argument its partition spec, as for `mark_sharding`. A list, tuple or
            dictionary has a list, tuple or dictionary of specs; what is no tensor is passed as it
            is, with None. An axis that shards nothing gives its devices the same shard.
        out_specs: likewise for the result. Along an axis that shards no dimension the devices must
            have the same: any of them is taken.

    Returns:
        The function, for compiled regions. Elsewhere it compiles itself.

    Raises:
        ShardingError: a spec has another rank or unknown axes, a size is not divisible, or there
            are not as many specs as tensors.

    >>> f = shard_map(lambda x, w: spmd.all_reduce(x @ w, axis="model"), mesh,
    ...               [("data", "model"), ("model", None)], ("data", None))
    """
    if not is_tracing_here():
        expect_marks()  # of the device 'xla': the results

    @functools.wraps(fn, updated=())
    def mapped(*args: Any) -> Any:
        if len(args) != len(in_specs):
            raise ShardingError(
                f"shard_map has {len(in_specs)} in_specs, and the function is called with "
                f"{len(args)} arguments: give a spec for each"
            )
        shards = _map(enable_manual_sharding, tuple(args), tuple(in_specs), mesh, "in_specs")
        enter(mesh)
        results = fn(*shards)
        leave()
        return _map(_leave, results, out_specs, mesh, "out_specs")

    compiled: list[Callable[..., Any]] = []

    @functools.wraps(fn, updated=())
    def call(*args: Any) -> Any:
        if is_tracing_here():
            return mapped(*args)
        if not compiled:
            # Dynamo counts what it compiled by the code: each function has code of its own.
            own: Any = mapped
            own.__code__ = own.__code__.replace(co_name=f"mapped_{next(_numbers)}")
            compiled.append(torch.compile(own, backend="openxla", fullgraph=True))
        return compiled[0](*args)

    return call


def enable_manual_sharding(
    t: torch.Tensor, partition_spec: PartitionSpec, *, mesh: Mesh | None = None
) -> torch.Tensor:
    """Enter a manual region: each device's shard of a tensor, as PyTorch/XLA's function.

    What is computed with the shard is computed by each device, until `disable_manual_sharding`.

    Args:
        t: the tensor, of any dtype: in a compiled region, or on the device 'xla'. There what is
            computed with the shard stays pending until what leaves the region is computed.
        partition_spec: as for `mark_sharding`.
        mesh: the devices. If it is not given, the global mesh.

    Returns:
        The shard: its sizes are those of `t`, divided by those of the axes.

    Raises:
        ShardingError: the spec has another rank or unknown axes, or a size is not divisible (where
            the graph is compiled); or this is neither a compiled region nor the device 'xla'.
    """
    refuse_forward_mode()
    if not is_tracing_here():
        expect_marks()
    mesh = mesh_or_current(mesh)
    names = [",".join(axes) for axes in axes_of(mesh, partition_spec)]
    return torch.ops.xla.full_to_shard(t, mesh.ids, mesh.mesh_shape, mesh.axis_names, names)


def disable_manual_sharding(
    t: torch.Tensor,
    partition_spec: PartitionSpec,
    full_shape: Sequence[int] | None = None,
    *,
    mesh: Mesh | None = None,
) -> torch.Tensor:
    """Leave a manual region: the tensor that the devices' shards make, as PyTorch/XLA's function.

    Args:
        t: the shard.
        partition_spec: as for `mark_sharding`. Along an axis that shards no dimension the devices
            must have the same.
        full_shape: the shape of the result, which follows from the shard's.
        mesh: the devices. If it is not given, the global mesh.

    Raises:
        ShardingError: `full_shape` is another one; or as `enable_manual_sharding`.
    """
    mesh = mesh_or_current(mesh)
    whole = _leave(t, partition_spec, mesh=mesh)
    if full_shape is not None and tuple(full_shape) != tuple(whole.shape):
        raise ShardingError(
            f"shards of shape {tuple(t.shape)} make a tensor of shape {tuple(whole.shape)}, and "
            f"full_shape is {tuple(full_shape)}"
        )
    return whole


def _leave(t: torch.Tensor, spec: PartitionSpec, *, mesh: Mesh) -> torch.Tensor:
    names = [",".join(axes) for axes in axes_of(mesh, spec)]
    return torch.ops.xla.shard_to_full(t, mesh.ids, mesh.mesh_shape, mesh.axis_names, names)


def _map(cross: Callable[..., Any], tree: Any, specs: Specs, mesh: Mesh, name: str) -> Any:
    """Have each tensor of a tree enter or leave, by its spec."""
    if isinstance(tree, torch.Tensor):
        if specs is None or isinstance(specs, str | dict):
            raise ShardingError(
                f"{name} has {specs!r} for a tensor of shape {tuple(tree.shape)}: give a spec, "
                "with an entry for each dimension, None where it is not sharded"
            )
        return cross(tree, specs, mesh=mesh)
    if isinstance(tree, dict):
        if not isinstance(specs, dict) or set(specs) != set(tree):
            raise ShardingError(f"{name} must have the keys {list(tree)}, and is {specs}")
        return {key: _map(cross, value, specs[key], mesh, name) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        if not isinstance(specs, list | tuple) or len(specs) != len(tree):
            raise ShardingError(
                f"{name} must have a spec for each of {len(tree)} values, and is {specs}"
            )
        made = [_map(cross, t, s, mesh, name) for t, s in zip(tree, specs, strict=True)]
        return tuple(made) if isinstance(tree, tuple) else made
    return tree
