"""The memory of the 'xla' device: PJRT buffers, which become tensors only where torch reads them.

A buffer has the elements of its value in the order in which they lie in the memory of a dense
tensor of the value's strides; where the strides leave gaps, in row-major order. Nothing else may
have the buffer, since programs write new values into the memory of old ones.
"""

import torch

from xla_dynamo.calls.buffer_calls import strides_layout
from xla_dynamo.lazy import placeholders
from xla_dynamo.lazy.contents import (
    Value,
    as_dtype,
    bits_of,
    bytes_behind,
    geometry_of,
    lock,
    span,
)
from xla_dynamo.runtime import jaxlib_private, metrics
from xla_dynamo.runtime.buffers import import_donated
from xla_dynamo.runtime.clients import placement_over
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.sharded_buffers import gathered, spread
from xla_dynamo.runtime.topology import default_placement
from xla_dynamo.torch_private import invert_perm


def placement() -> Placement:
    """Where the device computes: as the environment variable PJRT_DEVICE says.

    Raises:
        OptionError: there is no such platform.
    """
    return default_placement()


def fallback_device() -> torch.device:
    """The torch device where operators without a rule run; it may share memory with PJRT's."""
    return placement().torch_device


def value_of(tensor: torch.Tensor) -> Value:
    """The value of a tensor on `fallback_device` that nobody else has: its memory is taken."""
    size, stride = tensor.size(), tensor.stride()
    with metrics.timed("TensorToData"):
        buffer = buffer_of(tensor, size, stride)
    metrics.increment("CreateDataHandles")
    return Value((tensor.dtype, size, stride, 0), buffer)


def buffer_of(tensor: torch.Tensor, size: torch.Size, stride: tuple[int, ...]) -> Buffer:
    """A buffer of a tensor's elements in the layout of a size and strides; takes its memory."""
    where = placement()
    array = tensor.detach().to(where.torch_device)
    array = array.permute(strides_layout(size, stride).permutation).contiguous()
    return import_donated(array, where, where.stream() if where.has_streams else None)


def copy_of(tensor: torch.Tensor) -> Buffer:
    """A buffer of its own with a tensor's elements."""
    return buffer_of(tensor.clone(), tensor.size(), tensor.stride())


def tensor_of(value: Value) -> torch.Tensor:
    """A tensor of a computed value's elements, of its strides, on `fallback_device`.

    The tensor views the buffer's own memory where that is possible. So the caller must not write
    into the tensor, and must drop it before the next program runs, which may overwrite the memory.
    """
    _, size, stride, _ = value.geometry
    assert value.buffer is not None
    placeholders.refuse([value])
    array = gathered(value.buffer, placement())
    layout = strides_layout(size, stride)
    elements = array.permute(invert_perm(layout.permutation))
    if elements.stride() == stride:
        return elements
    if layout.is_dense:  # strides of dimensions of size 1 differ
        return elements.as_strided(size, stride)
    storage = array.new_empty(span(size, stride))
    offsets = torch.arange(len(storage), device=storage.device).as_strided(size, stride)
    storage[offsets.flatten()] = elements.flatten()  # copy_ refuses elements at one offset
    return storage.as_strided(size, stride)


def give_dtype(tensor: torch.Tensor) -> None:
    """Let loaded bytes be elements of the dtype of the first tensor that shows them."""
    with lock:
        cell = bytes_behind(tensor)
        if cell is None:
            return
        elements = tensor_of(cell.value).view(tensor.dtype)
        if tensor.is_contiguous() and tensor.numel() == elements.numel():
            elements = elements.view(tensor.size())
        cell.value, cell.is_bytes = value_of(elements), False


def sharding_of(value: Value) -> Sharding | None:
    """How a computed value is sharded over devices; None for one of a single device."""
    assert value.buffer is not None
    if isinstance(value.buffer, placeholders.Placeholder):
        return None
    sharding = jaxlib_private.sharding_of(value.buffer)
    if sharding is None:
        return None
    return sharding.permuted(invert_perm(strides_layout(*value.geometry[1:3]).permutation))


def shown(tensor: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    """The elements that a tensor shows of its value's memory, which is itself if these are all."""
    bits = bits_of(tensor)
    if not bits and geometry_of(tensor) == geometry_of(memory):
        return memory
    if tensor.dtype != memory.dtype:
        memory = as_dtype(memory, tensor.dtype)
    elements = memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    for op in bits:
        elements = op(elements)
    return elements


def spread_over(value: Value, sharding: Sharding) -> None:
    """Shard the elements of a value that is there over a mesh, evenly."""
    assert value.buffer is not None
    permutation = strides_layout(*value.geometry[1:3]).permutation
    where = placement_over(sharding.mesh, placement())
    value.buffer = spread(value.buffer, sharding.permuted(permutation), where)
