"""The ends of manual regions in a graph: `torch.ops.xla.full_to_shard` and `shard_to_full`."""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.replica_groups import groups_along, sizes_of
from xla_dynamo.spmd import collective_operators

# Lives as long as the process: torch forgets what a Library registered when it dies.
_library = torch.library.Library("xla", "FRAGMENT")
_ARGUMENTS = (
    "(Tensor x, int[] device_ids, int[] mesh_shape, str[] axis_names, str[] partition_spec)"
)
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
assert collective_operators  # whose operators are in the gradients


def counts_of(
    mesh_shape: Sequence[int], axis_names: Sequence[str], partition_spec: Sequence[str]
) -> list[int]:
    """Into how many shards each dimension is split; an unknown axis shards nothing here."""
    sizes = sizes_of(mesh_shape, axis_names)
    counts = []
    for names in partition_spec:
        count = 1
        for name in names.split(","):
            count *= sizes.get(name, 1)
        counts.append(count)
    return counts


def _only_compiled(x: torch.Tensor, *_: Any) -> torch.Tensor:
    raise ShardingError(
        f"a manual region is entered or left by a tensor of shape {tuple(x.shape)} in eager code, "
        "where no device has a shard of it: compile the function, by "
        'torch.compile(fn, backend="openxla", fullgraph=True)'
    )


def _shard(
    x: torch.Tensor,
    device_ids: Sequence[int],
    mesh_shape: Sequence[int],
    axis_names: Sequence[str],
    partition_spec: Sequence[str],
) -> torch.Tensor:
    counts = counts_of(mesh_shape, axis_names, partition_spec)
    if len(counts) != x.dim():
        return torch.empty_like(x)  # refused where the graph is compiled
    # Rounded up: without elements it would be lowered without a look at what is sharded.
    return x.new_empty([-(-n // count) for n, count in zip(x.shape, counts, strict=True)])


def _whole(
    x: torch.Tensor,
    device_ids: Sequence[int],
    mesh_shape: Sequence[int],
    axis_names: Sequence[str],
    partition_spec: Sequence[str],
) -> torch.Tensor:
    counts = counts_of(mesh_shape, axis_names, partition_spec)
    if len(counts) != x.dim():
        return torch.empty_like(x)
    return x.new_empty([n * count for n, count in zip(x.shape, counts, strict=True)])


def _keep_spec(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, *ctx.spec = inputs


def _unsharded(spec: Sequence[Any]) -> list[str]:
    """The axes of more than one device that shard no dimension."""
    _, mesh_shape, axis_names, partition_spec = spec
    used = {name for names in partition_spec for name in names.split(",")}
    sizes = sizes_of(mesh_shape, axis_names)
    return [name for name in axis_names if name not in used and sizes[name] > 1]


def _gradient_of_entry(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """Devices that had the same shard each have a part of its gradient."""
    _, mesh_shape, axis_names, _ = ctx.spec
    if axes := _unsharded(ctx.spec):
        groups, size = groups_along(mesh_shape, axis_names, axes)
        gradient = torch.ops.xla.all_reduce(gradient, "sum", groups, size)
    return torch.ops.xla.shard_to_full(gradient, *ctx.spec), None, None, None, None


def _gradient_of_exit(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
    """Devices that have the same shard share its gradient."""
    _, mesh_shape, axis_names, _ = ctx.spec
    sizes = sizes_of(mesh_shape, axis_names)
    for name in _unsharded(ctx.spec):
        gradient = gradient / sizes[name]
    return torch.ops.xla.full_to_shard(gradient, *ctx.spec), None, None, None, None


for _name, _fake, _gradient in (
    ("full_to_shard", _shard, _gradient_of_entry),
    ("shard_to_full", _whole, _gradient_of_exit),
):
    _library.define(f"{_name}{_ARGUMENTS} -> Tensor", tags=_TAGS)
    torch.library.impl(f"xla::{_name}", "CompositeExplicitAutograd", _only_compiled, lib=_library)
    torch.library.register_fake(f"xla::{_name}", _fake, lib=_library)
    torch.library.register_autograd(
        f"xla::{_name}", _gradient, setup_context=_keep_spec, lib=_library
    )
