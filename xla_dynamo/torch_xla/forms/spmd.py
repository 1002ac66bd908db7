"""Names of `torch_xla.distributed.spmd`: a sharded tensor is an ordinary one with a mark."""

from typing import Any, TypeAlias

import torch
from torch import nn

from xla_dynamo import spmd
from xla_dynamo.torch_private import pytree

PartitionSpec: TypeAlias = tuple[tuple[int | str, ...] | int | str | None, ...]


class _Marked(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, torch.Tensor) and spmd.sharding_of(value) is not None


class XLAShardedTensor(metaclass=_Marked):
    """What tensors with a mark are instances of."""


def wrap_as_sharded_tensor(
    t: torch.Tensor, mesh_shape: Any = None, partition_spec: Any = None
) -> torch.Tensor:
    """The tensor itself."""
    return t


def wrap_if_sharded(x: Any) -> Any:
    """The value itself."""
    return x


def unwrap_sharded_tensor(t: torch.Tensor) -> torch.Tensor:
    """The tensor itself."""
    return t


def apply_xla_patch_to_nn_linear(module: nn.Module, *_: Any) -> nn.Module:
    """The module itself: linear layers keep batch and sequence apart in any case."""
    return module


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
