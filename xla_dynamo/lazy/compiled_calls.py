"""Compiled graphs on 'xla' tensors: their programs take and give the buffers of computed values."""

from collections.abc import Collection, Mapping, Sequence

import torch

from xla_dynamo.lazy import contents, memory, placeholders, random_state
from xla_dynamo.lazy.contents import Value, cell_of, geometry_of, new_tensor, shows_all
from xla_dynamo.lazy.execution import compute, left_pending, running, tensors_behind
from xla_dynamo.lazy.sharding import computed, gather, is_here, mark, put_shards, shard_of
from xla_dynamo.runtime import marks, metrics
from xla_dynamo.runtime.jaxlib_private import Buffer, sharding_of
from xla_dynamo.runtime.mesh import Sharding


class LazyTensors:
    """What `runtime.placement.DeviceTensors` asks for."""

    in_use = running
    generator = random_state.generator

    def buffers_of(self, args: Sequence[torch.Tensor], given: Collection[int]) -> list[Buffer]:
        """The buffers of arguments; copies of the `given` ones that somebody else reads.

        A program that changes the contents of some must not change what is still to be read: so
        before it all is computed that is pending, and not the arguments alone.
        """
        found = [a for a in args if a.device.type == "xla"]
        pending = [v for a in found if (v := cell_of(a).value).record is not None]
        if pending:
            metrics.increment("DynamoSyncInputExecuteTime")
        if given:
            compute()
        elif pending:
            compute(pending)
        buffers = [_buffer(a) for a in args]
        for index in given:
            taken, tensor = buffers[index], args[index]
            others = [b for i, b in enumerate(buffers) if i != index]
            read = left_pending() or any(taken is b for b in others)
            if read or not _may_change(tensor):
                with tensors_behind([tensor]) as (elements,):
                    buffers[index] = memory.copy_of(elements)
        return buffers

    def sharding_of(self, tensor: torch.Tensor) -> Sharding | None:
        """How the elements of a tensor are sharded over devices, once they are computed."""
        if tensor.device.type != "xla" or not shows_all(tensor):
            return None
        with running:
            return memory.sharding_of(computed(tensor))

    def mark(self, tensor: torch.Tensor, sharding: Sharding | None) -> None:
        """Shard the elements of a tensor; None lets them lie on one device."""
        if sharding is None:
            gather(tensor)
        else:
            mark(tensor, sharding)

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Whether this process has all elements of a tensor, which is computed if it is pending."""
        return is_here(tensor)

    def shard_of(self, tensor: torch.Tensor, device: int) -> torch.Tensor:
        """A copy, on the CPU, of what a device of this process holds of a sharded tensor."""
        return shard_of(tensor, device)

    def put_shards(self, tensor: torch.Tensor, shards: Mapping[torch.Size, torch.Tensor]) -> None:
        """Give a sharded tensor the elements of its shards on this process's devices."""
        put_shards(tensor, shards)

    def over(self, buffer: Buffer, size: Sequence[int], stride: Sequence[int]) -> torch.Tensor:
        """A tensor of the device with these contents."""
        if not marks.were_ever_there() and sharding_of(buffer) is not None:
            marks.expect()  # the compiled region had some, and what reads its result is divided
        dtype = getattr(torch, str(buffer.dtype))
        return new_tensor(Value((dtype, torch.Size(size), tuple(stride), 0), buffer))

    def over_memory(self, memory_: torch.Tensor) -> torch.Tensor:
        """A tensor of the device with the elements of a tensor, whose memory it takes."""
        return new_tensor(memory.value_of(memory_))

    def put(self, tensor: torch.Tensor, new: torch.Tensor) -> None:
        """Give a tensor, of the device or a number of the host, the elements of another."""
        if _takes_value(tensor, new) and _may_change(tensor):
            with contents.lock:
                cell_of(tensor).value = cell_of(new).value
            asked = marks.sharding_of(tensor)
            if asked and asked.shards_evenly(tensor.shape) and asked != self.sharding_of(tensor):
                mark(tensor, asked)
            return
        with torch.no_grad():
            tensor.copy_(new)


def _buffer(tensor: torch.Tensor) -> Buffer:
    """The buffer of a tensor's contents; of a copy where it shows but a part, or is of the host."""
    if tensor.device.type != "xla":
        return memory.copy_of(tensor)
    value = cell_of(tensor).value
    if shows_all(tensor) and value.buffer is not None:
        if isinstance(value.buffer, placeholders.Placeholder):
            placeholders.refuse([value])
        return value.buffer
    with tensors_behind([tensor]) as (elements,):
        return memory.copy_of(elements)


def _takes_value(tensor: torch.Tensor, new: torch.Tensor) -> bool:
    """Whether a tensor may have the value of another for its contents, as it is."""
    on_device = tensor.device.type == new.device.type == "xla"
    same = on_device and geometry_of(tensor) == geometry_of(new)
    return same and shows_all(tensor) and shows_all(new)


def _may_change(tensor: torch.Tensor) -> bool:
    """Eager refuses to change inference tensors elsewhere."""
    return torch.is_inference_mode_enabled() or not tensor.is_inference()
