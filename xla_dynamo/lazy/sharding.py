"""Shard tensors of the 'xla' device over a mesh: what is computed at once, the rest when it is."""

from collections.abc import Mapping

import torch

from xla_dynamo.calls.buffer_calls import strides_layout
from xla_dynamo.lazy import contents, execution, memory
from xla_dynamo.lazy.contents import Value, cell_of, new_tensor, shows_all, shows_twice
from xla_dynamo.lazy.transfers import uploaded
from xla_dynamo.runtime import marks, metrics, sharded_buffers
from xla_dynamo.runtime.buffers import download
from xla_dynamo.runtime.clients import placement_over
from xla_dynamo.runtime.jaxlib_private import shards_of
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.sharded_buffers import (
    gathered,
    import_part,
    import_sharded,
    import_shards,
)
from xla_dynamo.spmd.operators import mark_in_graph
from xla_dynamo.torch_private import invert_perm


def mark(tensor: torch.Tensor, sharding: Sharding) -> None:
    """Shard the elements of a tensor: those that are computed now, others in their program.

    What does not shard evenly, and a part of a tensor, is sharded within programs alone.

    Raises:
        ShardingError: there are no such devices.
    """
    placement_over(sharding.mesh, memory.placement())
    metrics.increment("XlaMarkSharding")
    with execution.running:
        with contents.lock:
            value = cell_of(tensor).value
        if value.buffer is not None and shows_all(tensor) and sharding.shards_evenly(tensor.shape):
            memory.spread_over(value, sharding)
            return
    if shows_twice(tensor):
        return  # nobody may write there
    axes = [list(names) for names in sharding.axes]
    with torch.no_grad():
        tensor.copy_(mark_in_graph(tensor.detach(), sharding.mesh, axes, False))


def uploaded_in_shards(
    tensor: torch.Tensor, sharding: Sharding, is_part: bool = False
) -> torch.Tensor:
    """A marked tensor of the device with the elements of one of the host, evenly sharded.

    Unlike `mark` it waits for no program that runs.

    Args:
        tensor: the tensor of the host.
        sharding: how it is sharded over a mesh.
        is_part: whether each process has only its own rows of it (see `import_part`).

    Raises:
        ShardingError: the part does not shard evenly.
        UnsupportedTensor, UnsupportedDtype: XLA has no form for it.
    """
    placement = placement_over(sharding.mesh, memory.placement())
    if is_part and len(placement.processes) > 1:
        rows = uploaded(tensor, tensor.dtype, torch.contiguous_format).detach()
        buffer = import_part(rows, sharding, placement)
        stride = torch.empty(buffer.shape, device="meta").stride()
        made = new_tensor(Value((rows.dtype, torch.Size(buffer.shape), stride, 0), buffer))
        marks.mark(made, sharding)
        return made
    whole = uploaded(tensor, tensor.dtype)
    size, stride = whole.size(), whole.stride()
    permutation = strides_layout(size, stride).permutation
    elements = whole.detach().permute(permutation).contiguous()
    buffer = import_sharded(elements, sharding.permuted(permutation), placement)
    made = new_tensor(Value((whole.dtype, size, stride, 0), buffer))
    marks.mark(made, sharding)
    return made


def computed(tensor: torch.Tensor) -> Value:
    """The value behind a tensor, which is computed if it is pending."""
    value = cell_of(tensor).value
    if value.record is not None:
        execution.compute([value])
    return value


def gather(tensor: torch.Tensor) -> None:
    """Let the elements of a tensor lie on one device again."""
    with execution.running:
        value = computed(tensor)
        if value.buffer is not None and memory.sharding_of(value) is not None:
            elements = gathered(value.buffer, memory.placement())
            value.buffer = memory.buffer_of(elements.clone(), elements.size(), elements.stride())


def is_here(tensor: torch.Tensor) -> bool:
    """Whether this process has all elements of a tensor, which is computed if it is pending."""
    with execution.running:
        sharding = memory.sharding_of(computed(tensor))
    if sharding is None:
        return True
    placement = placement_over(sharding.mesh, memory.placement())
    return sharded_buffers.is_here(sharding.tiling(), placement)


def shard_of(tensor: torch.Tensor, device: int) -> torch.Tensor:
    """A copy, on the CPU, of what a device of this process holds of a sharded tensor.

    Args:
        tensor: a tensor that is computed and lies over the devices of a mesh.
        device: the device's place in the mesh.
    """
    with execution.running:
        value = cell_of(tensor).value
        sharding = memory.sharding_of(value)
        assert value.buffer is not None
        assert sharding is not None
        own = placement_over(sharding.mesh, memory.placement()).own
        permutation = strides_layout(*value.geometry[1:3]).permutation
        shard = download(shards_of(value.buffer)[own.index(device)])
        return shard.permute(invert_perm(permutation))


def put_shards(tensor: torch.Tensor, shards: Mapping[torch.Size, torch.Tensor]) -> None:
    """Give a sharded tensor the elements of its shards on this process's devices.

    Args:
        tensor: a tensor that is computed and lies over the devices of a mesh.
        shards: tensors of the CPU, by the offsets of what they hold.
    """
    with execution.running:
        cell = cell_of(tensor)
        sharding = memory.sharding_of(cell.value)
        assert sharding is not None
        placement = placement_over(sharding.mesh, memory.placement())
        permutation = strides_layout(*cell.value.geometry[1:3]).permutation
        slices = sharding.tiling().slices(tensor.shape)
        offsets = [torch.Size([part.start for part in slices[i]]) for i in placement.own]
        elements = [
            shards[at].to(placement.torch_device).permute(permutation).contiguous()
            for at in offsets
        ]
        size = [tensor.shape[d] for d in permutation]
        buffer = import_shards(elements, size, sharding.permuted(permutation), placement)
        with contents.lock:
            cell.value = Value(cell.value.geometry, buffer)
    torch.autograd.graph.increment_version(tensor)
