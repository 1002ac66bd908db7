"""The memory of the devices of a mesh, over which a program's arrays are sharded."""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.memory.donated_inputs import write_back
from xla_dynamo.memory.memory import Results, Supply
from xla_dynamo.memory.sharded_tensors import new_sharded_buffer, sharded_buffer
from xla_dynamo.programs.layouts import input_layout
from xla_dynamo.programs.program import (
    Constant,
    Donated,
    Input,
    Parameter,
    Program,
    result_types,
)
from xla_dynamo.runtime.clients import numbers_of
from xla_dynamo.runtime.executables import Executable
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.mesh import Mesh, Sharding
from xla_dynamo.runtime.sharded_buffers import assembled, export_sharded, spread


class ShardedMemory:
    """The memory of the devices of a mesh."""

    def __init__(self, program: Program, executable: Executable) -> None:
        """Take how the program's arguments and results are sharded."""
        self.placement = executable.placement
        ids = numbers_of(self.placement)
        names, sizes = zip(*program.mesh, strict=True)
        self._mesh = Mesh(ids, sizes, names)
        shapes = [shape for shape, _ in result_types(program)]
        self._results = list(zip(executable.result_tilings(), shapes, strict=True))

    def inputs(self, slots: Sequence[Input]) -> list[Supply]:
        """A function that gives the buffers of inputs, each sharded as the program reads it."""
        # A tensor that is sharded was marked, and so comes again.
        taken = [
            (
                slot.index,
                slot.layout,
                self._sharding(slot),
                sharded_buffer
                if isinstance(slot, Parameter) or any(slot.axes)
                else new_sharded_buffer,
            )
            for slot in slots
        ]
        placement, device = self.placement, self.placement.torch_device

        def supply(args: Sequence[Any], stream: int | None) -> list[Buffer]:
            buffers = []
            for index, layout, sharding, get in taken:
                tensor = args[index]
                if tensor.device.type != device.type:
                    tensor = tensor.to(device)
                buffers.append(get(tensor, layout, sharding, placement))
            return buffers

        return [supply]

    def constants(self, constants: Sequence[Constant]) -> Supply:
        """A function that gives the buffers of a graph's own tensors, whole on each device."""
        tensors = [constant.tensor.to(self.placement.torch_device) for constant in constants]
        return lambda args, stream: [self._whole(tensor, sharded_buffer) for tensor in tensors]

    def fresh(self, tensor: torch.Tensor, stream: int | None) -> Buffer:
        """The buffer of a tensor that comes once, whole on each device."""
        return self._whole(tensor.to(self.placement.torch_device), new_sharded_buffer)

    def taken(self, slots: Sequence[Input], buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """Buffers sharded as the program reads them.

        Buffers of one device, or sharded otherwise, are sharded anew.
        """
        pairs = zip(slots, buffers, strict=True)
        return [spread(buffer, self._sharding(slot), self.placement) for slot, buffer in pairs]

    def tensors(self, results: Results, stream: int | None) -> list[torch.Tensor]:
        """Tensors with the elements of the first results, gathered from the devices."""
        return self._gathered(results, self._results[: len(results)])

    def write_back(
        self,
        slots: Sequence[Donated],
        tensors: Sequence[torch.Tensor],
        results: Results,
        stream: int | None,
    ) -> None:
        """Copy the new values, which are the last results."""
        write_back(slots, tensors, self._gathered(results, self._results[-len(results) :]))

    def _gathered(self, results: Results, kinds: Sequence[Any]) -> list[torch.Tensor]:
        return [
            export_sharded(shards, tiling, shape, self.placement)
            for shards, (tiling, shape) in zip(results, kinds, strict=True)
        ]

    def buffers(self, results: Results) -> list[Buffer]:
        """A buffer of all devices for each result."""
        return [
            assembled(shards, tiling, shape, self._mesh, self.placement)
            for shards, (tiling, shape) in zip(results, self._results, strict=True)
        ]

    def _sharding(self, slot: Input) -> Sharding:
        return Sharding(self._mesh, slot.axes or ((),) * len(slot.layout.permutation))

    def _whole(self, tensor: torch.Tensor, get: Any) -> Buffer:
        sharding = Sharding(self._mesh, ((),) * tensor.ndim)
        return get(tensor, input_layout(tensor), sharding, self.placement)
