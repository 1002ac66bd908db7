"""Plans of `torch.distributed.checkpoint` for state dicts of marked tensors."""

import collections
import dataclasses
import io
import math
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from xla_dynamo.distributed_checkpoint.shards import is_plain, part_of, shards_of
from xla_dynamo.errors import CheckpointError


class SPMDSavePlanner(DefaultSavePlanner):
    """Writes a marked tensor shard by shard, each shard that a device holds once.

    Everything else is written as by `DefaultSavePlanner`, and the checkpoint is one that each
    reader and planner of `torch.distributed.checkpoint` can load.

    >>> dcp.save(state_dict, checkpoint_id=folder, planner=SPMDSavePlanner(), no_dist=True)
    """

    def __init__(self, flatten_state_dict: bool = True) -> None:
        """Take whether dicts in the state dict are entered, as for `DefaultSavePlanner`."""
        super().__init__(flatten_state_dict=flatten_state_dict)
        self._sharded: set[str] = set()
        self._fetched: tuple[str, torch.Tensor] | None = None

    def create_local_plan(self) -> SavePlan:
        """The plan of `DefaultSavePlanner`, with an item for each shard of a sharded tensor."""
        plan = super().create_local_plan()
        items: list[WriteItem] = []
        self._sharded = set()
        for item in plan.items:
            name = item.index.fqn
            shards = shards_of(self.state_dict[name])
            if shards:
                self._sharded.add(name)
                items.extend(_write_item(item, shard) for shard in shards)
            else:
                items.append(item)
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """What an item of the plan writes: for a shard, a view of it."""
        name = write_item.index.fqn
        if name in self._sharded:
            assert write_item.tensor_data is not None
            return part_of(self._on_host(name), write_item.tensor_data.chunk)
        return super().resolve_data(write_item)

    def _on_host(self, name: str) -> torch.Tensor:
        """A tensor in memory of the host; of the device 'xla' fetched once for all its shards."""
        tensor = self.state_dict[name]
        if tensor.device.type != "xla":
            return tensor
        fetched = self._fetched
        if fetched is None or fetched[0] != name:
            self._fetched = fetched = (name, tensor.detach().cpu())
        return fetched[1]


class SPMDLoadPlanner(DefaultLoadPlanner):
    """Reads a marked tensor shard by shard, whatever the shards of the checkpoint are.

    The marks are those of the tensors that are loaded into, which stay as they are. What a shard
    needs is copied out of each saved shard that overlaps it, in place.

    >>> dcp.load(state_dict, checkpoint_id=folder, planner=SPMDLoadPlanner(), no_dist=True)
    """

    def __init__(self, flatten_state_dict: bool = True, allow_partial_load: bool = False) -> None:
        """Take what `DefaultLoadPlanner` takes.

        Args:
            flatten_state_dict: whether dicts in the state dict are entered.
            allow_partial_load: whether keys that the checkpoint lacks are left as they are.
        """
        super().__init__(
            flatten_state_dict=flatten_state_dict, allow_partial_load=allow_partial_load
        )
        self._shards: dict[str, list[ChunkStorageMetadata]] = {}
        # Of tensors of the device 'xla': their new elements, and how many items are still to come.
        self._gathered: dict[str, torch.Tensor] = {}
        self._left: collections.Counter[str] = collections.Counter()

    def create_local_plan(self) -> LoadPlan:
        """The plan of `DefaultLoadPlanner`, with items for the shards of sharded tensors.

        Raises:
            CheckpointError: the shards in the checkpoint do not make up a tensor.
        """
        plan = super().create_local_plan()
        assert self.metadata is not None
        stored = self.metadata.state_dict_metadata
        shards = {item.dest_index.fqn: shards_of(self._value(item)) for item in plan.items}
        self._shards = {
            name: own
            for name, own in shards.items()
            if own and isinstance(stored[name], TensorStorageMetadata)
        }
        items = [item for item in plan.items if item.dest_index.fqn not in self._shards]
        for name, own in self._shards.items():
            items.extend(create_read_items_for_chunk_list(name, stored[name], own))
        self._check_that_all_is_read(items)
        self._left = collections.Counter(item.dest_index.fqn for item in items)
        return dataclasses.replace(plan, items=items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The tensor, or the shard of it, that an item of the plan reads into."""
        tensor = self.state_dict[index.fqn]
        if not is_plain(tensor):
            return super().lookup_tensor(index)
        if tensor.device.type == "xla":
            if index.fqn not in self._gathered:
                self._gathered[index.fqn] = torch.empty(tensor.shape, dtype=tensor.dtype)
            tensor = self._gathered[index.fqn]
        for shard in self._shards.get(index.fqn, ()):
            if shard.offsets == index.offset:
                return part_of(tensor, shard)
        return tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Note that an item was read; the last one of an 'xla' tensor completes its elements."""
        name = read_item.dest_index.fqn
        self._left[name] -= 1
        if not self._left[name] and name in self._gathered:
            self.state_dict[name].detach().copy_(self._gathered.pop(name))

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put an object that is not a tensor into the state dict.

        `DefaultLoadPlanner` takes keys that are numbers, as in the state of an optimizer, for
        strings, and would add another entry.
        """
        name = read_item.dest_index.fqn
        loaded = torch.load(value, weights_only=False)
        if not self.flatten_state_dict:
            self.state_dict[name] = loaded
            return
        *path, last = self.mappings[name]
        container: Any = self.original_state_dict
        for step in path:
            container = container[_key(container, step)]
        container[_key(container, last)] = loaded

    def _value(self, item: ReadItem) -> Any:
        return self.state_dict[item.dest_index.fqn]

    def _check_that_all_is_read(self, items: list[ReadItem]) -> None:
        found: collections.Counter[str] = collections.Counter()
        for item in items:
            found[item.dest_index.fqn] += math.prod(item.lengths)
        assert self.metadata is not None
        for name, saved in self.metadata.state_dict_metadata.items():
            value = self.state_dict.get(name)
            if not isinstance(saved, TensorStorageMetadata) or not is_plain(value):
                continue
            if found[name] != value.numel():
                raise CheckpointError(
                    f"the tensor {name!r} of shape {tuple(value.shape)} has {value.numel()} "
                    f"elements, and the shards of it in the checkpoint {found[name]}: its metadata "
                    "is damaged, or shards were not saved"
                )


def _write_item(item: WriteItem, shard: ChunkStorageMetadata) -> WriteItem:
    """The item of a whole tensor, for a shard of it."""
    assert item.tensor_data is not None
    return WriteItem(
        index=MetadataIndex(item.index.fqn, shard.offsets),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=shard, properties=item.tensor_data.properties, size=item.tensor_data.size
        ),
    )


def _key(container: Any, step: Any) -> Any:
    """The key of a container that a step of a path means: paths have numbers as strings."""
    if not isinstance(container, dict) or step in container:
        return step
    return next((key for key in container if str(key) == step), step)
