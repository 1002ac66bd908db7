"""Buffers of several devices with the elements of tensors, kept until the tensors change.

A shard that is a view of its tensor's memory sees changes by itself. A copy is compared with the
tensor's version at each call (`changes` says which changes count).
"""

from typing import Any

import torch

from xla_dynamo.memory.changes import epoch, watch_optimizers
from xla_dynamo.memory.known_buffers import ready
from xla_dynamo.memory.restriding import preparation
from xla_dynamo.programs.layouts import InputLayout
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address, shards_of
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.sharded_buffers import import_sharded
from xla_dynamo.runtime.weak_table import WeakTable
from xla_dynamo.torch_private import version_of

# By the id of a tensor, a layout, tiling and placement: the state that the tensor was in, and its
# buffer then.
_table: WeakTable[tuple[Any, ...], tuple[tuple[Any, ...], Buffer]] = WeakTable()


def sharded_buffer(
    tensor: torch.Tensor, layout: InputLayout, sharding: Sharding, placement: Placement
) -> Buffer:
    """The buffer of a tensor that may come again, sharded in the order of the layout."""
    key = (id(tensor), layout, sharding.tiling(), placement)  # axes may have other names
    state, known = _table.values.get(key, ((), None))
    if known is not None and state == _state(tensor, state):
        return known
    watch_optimizers()
    before = _state(tensor, (0, 0))  # before it is read: a change meanwhile is one to be seen
    buffer = new_sharded_buffer(tensor, layout, sharding, placement)
    if _is_view(buffer, tensor):
        _table.put(key, tensor, (before[:1], buffer))
    elif before[1] is not None and tensor.ndim > 1:  # batch norm's statistics change uncounted
        _table.put(key, tensor, (before, buffer))
    return buffer


def new_sharded_buffer(
    tensor: torch.Tensor, layout: InputLayout, sharding: Sharding, placement: Placement
) -> Buffer:
    """The buffer of a tensor that comes once."""
    given = ready(tensor, tensor.data_ptr(), preparation(layout))
    return import_sharded(given.detach(), sharding, placement)


def _state(tensor: torch.Tensor, like: tuple[Any, ...]) -> tuple[Any, ...]:
    """What differs when a tensor has changed: for a view of its memory, that is its address."""
    if len(like) == 1:
        return (tensor.data_ptr(),)
    if tensor.is_inference():  # whose changes nobody counts
        return tensor.data_ptr(), None
    return tensor.data_ptr(), (version_of(tensor), epoch())


def _is_view(buffer: Buffer, tensor: torch.Tensor) -> bool:
    start = tensor.data_ptr()
    end = start + tensor.untyped_storage().nbytes()
    return all(start <= buffer_address(shard) < end for shard in shards_of(buffer))
