"""Names of `torch_xla._XLAC` for shardings."""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo import spmd
from xla_dynamo.runtime.hlo_shardings import sharding_text
from xla_dynamo.torch_xla.forms.meshes import OpSharding, sharding_type_of
from xla_dynamo.torch_xla.forms.sharded_tensors import mark, sharding_now
from xla_dynamo.torch_xla.forms.spmd import annotate_custom_sharding

__all__ = ["OpSharding"]

Tensors = Sequence[torch.Tensor]


def _get_xla_sharding_spec(tensor: torch.Tensor) -> str:
    """A tensor's sharding as XLA writes it; "" of one that has none."""
    sharding = sharding_now(tensor)
    return "" if sharding is None else sharding_text(sharding)


def _get_xla_sharding_specs(tensors: Tensors) -> list[str]:
    """The shardings of tensors, as XLA writes them."""
    return [_get_xla_sharding_spec(tensor) for tensor in tensors]


def _get_xla_sharding_type(tensor: torch.Tensor) -> int | None:
    """The kind of a tensor's sharding, as a number of `ShardingType`; None of one without."""
    sharding = sharding_now(tensor)
    return None if sharding is None else int(sharding_type_of(sharding))


def _get_xla_op_sharding(tensor: torch.Tensor) -> OpSharding | None:
    """What XLA is told of a tensor's sharding; None of one without."""
    sharding = sharding_now(tensor)
    return None if sharding is None else OpSharding.of(sharding)


def _xla_mark_sharding(tensor: torch.Tensor, sharding: OpSharding) -> None:
    """Mark a tensor."""
    mark(tensor, *sharding.on_mesh(tensor.dim()))


def _xla_annotate_custom_sharding(tensor: torch.Tensor, sharding: OpSharding) -> None:
    """Tell the program how a tensor is sharded where it is used from here on."""
    now = sharding_now(tensor)
    if now is None:
        annotate_custom_sharding(tensor, *sharding.on_mesh(tensor.dim()))
        return
    # A program has one mesh: the one that the tensor is marked for.
    asked = sharding.over(now.mesh, tensor.dim())
    annotate_custom_sharding(tensor, now.mesh, tuple(names or None for names in asked.axes))


def _xla_clear_sharding(tensor: torch.Tensor) -> None:
    """Take a tensor's mark off."""
    spmd.clear_sharding(tensor)


def _get_local_shards(tensors: Tensors) -> list[list[tuple[torch.Tensor, str]]]:
    """The elements of each tensor's parts on this process's devices, with the devices."""
    return [[(s.data, s.shard_device) for s in _shards(tensor)] for tensor in tensors]


def _get_local_shard_replica_and_indices(tensors: Tensors) -> list[list[tuple[int, Any]]]:
    """The number of each part among those that are the same, and where it lies."""
    return [[(s.replica_id, s.indices) for s in _shards(tensor)] for tensor in tensors]


def _load_local_shards(
    tensor: torch.Tensor, data: Sequence[torch.Tensor], devices: Sequence[str]
) -> None:
    """Give a tensor the elements of its parts on these devices."""
    known = {shard.shard_device: shard for shard in _shards(tensor)}
    given = []
    for elements, device in zip(data, devices, strict=True):
        shard = known[device]
        shard.data = elements
        given.append(shard)
    tensor.load_local_shards_(given)  # type: ignore[attr-defined]


def _shards(tensor: torch.Tensor) -> Any:
    return tensor.local_shards  # type: ignore[attr-defined]
