"""Inputs and results that are tensors of a device whose contents are PJRT buffers: no copies."""

from collections.abc import Sequence
from typing import Any

import jax
import torch

from xla_dynamo.calls.buffer_calls import own_geometries, strides_layout
from xla_dynamo.calls.failures import failure
from xla_dynamo.calls.supply import InputParts
from xla_dynamo.memory.memory import Memory, Results, Supply
from xla_dynamo.memory.restriding import preparation, restriding
from xla_dynamo.programs.program import Donated, Input, Program
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.placement import DeviceTensors
from xla_dynamo.runtime.sharded_buffers import gathered


def inputs_of_device(memory: Memory, tensors: DeviceTensors) -> InputParts:
    """What gives the buffers of inputs: those that the tensors consist of."""

    def parts(slots: Sequence[Input]) -> list[Supply]:
        donated = [i for i, slot in enumerate(slots) if isinstance(slot, Donated)]

        def supply(args: Sequence[Any], stream: int | None) -> Sequence[Buffer]:
            given = [_prepared(args[slot.index], slot) for slot in slots]
            return memory.taken(slots, tensors.buffers_of(given, donated))

        return [supply]

    return parts


def _prepared(tensor: torch.Tensor, slot: Input) -> torch.Tensor:
    """The tensor, or one in the layout that the program was compiled for."""
    if strides_layout(tensor.size(), tensor.stride()) == slot.layout:
        return tensor
    prepare = preparation(slot.layout)
    return tensor.contiguous() if prepare is None else prepare(tensor)


def results_on_device(program: Program, memory: Memory, tensors: DeviceTensors) -> Any:
    """The step that makes tensors of the device of a program's results."""
    geometries = own_geometries(program)[: len(program.results) - len(program.of(Donated))]
    slots = enumerate(program.results)
    changes = {i: restriding(slot.restride) for i, slot in slots if slot.restride is not None}

    def elsewhere(number: int, buffer: Buffer) -> torch.Tensor:
        try:
            elements = gathered(buffer, memory.placement)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise failure(error, program) from error
        if number in changes:
            elements = changes[number](elements)
        on_host = program.results[number].on_host
        return elements.cpu() if on_host else tensors.over_memory(elements)

    def export(
        results: Results, changing: list[torch.Tensor], stream: int | None
    ) -> list[torch.Tensor]:
        buffers = memory.buffers(results)
        made = []
        for number, geometry in enumerate(geometries):
            if geometry is None or program.results[number].on_host:
                made.append(elsewhere(number, buffers[number]))
            else:
                made.append(tensors.over(buffers[number], *geometry))
        for tensor, buffer in zip(changing, buffers[len(made) :], strict=True):
            tensors.put(tensor, tensors.over(buffer, tensor.size(), tensor.stride()))
        return made

    return export
