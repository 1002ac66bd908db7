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

from xla_dynamo.distributed_checkpoint.shards import (
    Shard,
    device_tensors,
    is_here,
    is_plain,
    memory_sharding,
    part_of,
    shards_of,
)
from xla_dynamo.errors import CheckpointError


class SPMDSavePlanner(DefaultSavePlanner):
    """Writes a marked tensor shard by shard, each shard that a device holds once.

    Over several processes each writes shards of its own devices. Everything else is written as by
    `DefaultSavePlanner`, and the checkpoint is one that each reader and planner of
    `torch.distributed.checkpoint` can load.

    >>> dcp.save(state_dict, checkpoint_id=folder, planner=SPMDSavePlanner(), no_dist=True)
    """

    def __init__(self, flatten_state_dict: bool = True) -> None:
        """Take whether dicts in the state dict are entered, as for `DefaultSavePlanner`."""
        super().__init__(flatten_state_dict=flatten_state_dict)
        # The shards of tensors by name and offsets, and the tensors that lie in shards in memory.
        self._shards: dict[tuple[str, torch.Size], Shard] = {}
        self._in_shards: set[str] = set()
        self._fetched: tuple[str, torch.Tensor] | None = None
        self._gathered: dict[str, torch.Tensor] = {}
        self._held: dict[tuple[str, torch.Size | None], torch.Tensor | io.BytesIO] = {}

    def create_local_plan(self) -> SavePlan:
        """The plan of `DefaultSavePlanner`, with an item for each shard of a sharded tensor."""
        plan = super().create_local_plan()
        items: list[WriteItem] = []
        for item in plan.items:
            name = item.index.fqn
            value = self.state_dict[name]
            if is_plain(value) and memory_sharding(value) is not None:
                self._in_shards.add(name)
            elif is_plain(value) and not is_here(value):
                # Only now do all processes come to this tensor.
                self._gathered[name] = value.detach().cpu()
            shards = shards_of(value, own=True)
            if shards is None:
                items.append(item)
                continue
            self._shards |= {(name, shard.chunk.offsets): shard for shard in shards}
            items.extend(_write_item(item, shard.chunk) for shard in shards)
        self.plan = dataclasses.replace(plan, items=items)
        return self.plan

    def hold(self) -> None:
        """Copy what the items of this process's plan write, so that the state may change."""
        for item in self.plan.items:
            data = self.resolve_data(item)
            copied = data.detach().cpu().clone() if isinstance(data, torch.Tensor) else data
            self._held[item.index.fqn, item.index.offset] = copied

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        """What an item of the plan writes: for a shard, a view of it."""
        name, offset = write_item.index.fqn, write_item.index.offset
        if (name, offset) in self._held:
            return self._held[name, offset]
        shard = self._shards.get((name, offset)) if offset is not None else None
        if shard is None:
            return (
                self._gathered[name] if name in self._gathered else super().resolve_data(write_item)
            )
        if name in self._in_shards:
            tensors = device_tensors(self.state_dict[name])
            assert tensors is not None
            return tensors.shard_of(self.state_dict[name], shard.device)
        return part_of(self._on_host(name), shard.chunk)

    def _on_host(self, name: str) -> torch.Tensor:
        """A tensor in memory of the host; of the device 'xla' fetched once for all its shards."""
        if name in self._gathered:
            return self._gathered[name]
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
    needs is copied out of each saved shard that overlaps it, in place. Over several processes each
    reads what its own devices hold; of a tensor of the CPU, which each has whole, all.

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
        self._shards: dict[str, list[Shard]] = {}
        # Of tensors of the device 'xla': their new elements, of those that lie in shards by the
        # shards' offsets, and how many items are still to come.
        self._gathered: dict[str, torch.Tensor] = {}
        self._in_shards: dict[str, dict[torch.Size, torch.Tensor]] = {}
        self._left: collections.Counter[str] = collections.Counter()

    def create_local_plan(self) -> LoadPlan:
        """The plan of `DefaultLoadPlanner`, with items for the shards of sharded tensors.

        Raises:
            CheckpointError: the shards in the checkpoint do not make up a tensor.
        """
        plan = super().create_local_plan()
        assert self.metadata is not None
        stored = self.metadata.state_dict_metadata
        names = dict.fromkeys(item.dest_index.fqn for item in plan.items)
        for name in names:
            value = self.state_dict[name]
            if not isinstance(stored[name], TensorStorageMetadata) or not is_plain(value):
                continue
            in_shards = memory_sharding(value) is not None
            shards = shards_of(value, own=in_shards)
            if shards is not None:
                self._shards[name] = shards
                if in_shards:
                    self._in_shards[name] = {
                        shard.chunk.offsets: torch.empty(shard.chunk.sizes, dtype=value.dtype)
                        for shard in shards
                    }
        items = [item for item in plan.items if item.dest_index.fqn not in self._shards]
        for name, shards in self._shards.items():
            chunks = [shard.chunk for shard in shards]
            items.extend(create_read_items_for_chunk_list(name, stored[name], chunks))
        self._check_that_all_is_read(items)
        self._left = collections.Counter(item.dest_index.fqn for item in items)
        return dataclasses.replace(plan, items=items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The tensor, or the shard of it, that an item of the plan reads into."""
        tensor = self.state_dict[index.fqn]
        if not is_plain(tensor):
            return super().lookup_tensor(index)
        if index.fqn in self._in_shards:
            assert index.offset is not None
            return self._in_shards[index.fqn][index.offset]
        if tensor.device.type == "xla":
            if index.fqn not in self._gathered:
                self._gathered[index.fqn] = torch.empty(tensor.shape, dtype=tensor.dtype)
            tensor = self._gathered[index.fqn]
        for shard in self._shards.get(index.fqn, ()):
            if shard.chunk.offsets == index.offset:
                return part_of(tensor, shard.chunk)
        return tensor

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Note that an item was read; the last one of an 'xla' tensor completes its elements."""
        name = read_item.dest_index.fqn
        self._left[name] -= 1
        if self._left[name]:
            return
        if name in self._gathered:
            self.state_dict[name].detach().copy_(self._gathered.pop(name))
        elif name in self._in_shards:
            tensors = device_tensors(self.state_dict[name])
            assert tensors is not None
            tensors.put_shards(self.state_dict[name], self._in_shards.pop(name))

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

    def _check_that_all_is_read(self, items: list[ReadItem]) -> None:
        found: collections.Counter[str] = collections.Counter()
        for item in items:
            found[item.dest_index.fqn] += math.prod(item.lengths)
        assert self.metadata is not None
        for name, saved in self.metadata.state_dict_metadata.items():
            value = self.state_dict.get(name)
            if not isinstance(saved, TensorStorageMetadata) or not is_plain(value):
                continue
            wanted = value.numel()
            if name in self._shards:
                wanted = sum(math.prod(shard.chunk.sizes) for shard in self._shards[name])
            if found[name] != wanted:
                raise CheckpointError(
                    f"the tensor {name!r} of shape {tuple(value.shape)} has {wanted} elements, "
                    f"and the shards of it in the checkpoint {found[name]}: its metadata is "
                    "damaged, or shards were not saved"
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
