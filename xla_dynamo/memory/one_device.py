"""The memory of one PJRT device, which torch's tensors may share."""

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.memory.donated_inputs import DonatedInputs, GivenBack, keep, write_back
from xla_dynamo.memory.known_buffers import KnownBuffers, StaticInputs
from xla_dynamo.memory.memory import Results, Supply
from xla_dynamo.memory.restriding import preparation
from xla_dynamo.programs.program import Constant, Donated, Input, Parameter
from xla_dynamo.runtime.buffers import exporter, import_tensor
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address
from xla_dynamo.runtime.placement import Placement


class OneDevice:
    """The memory of one device."""

    def __init__(
        self, placement: Placement, constants: Sequence[Constant] = (), keeps_inputs: bool = True
    ) -> None:
        """Take the program's constants, and whether an input may come with several calls."""
        self.placement, self._keeps = placement, keeps_inputs
        self._held = [constant.tensor for constant in constants]
        self._tensor_of = exporter(placement)
        self._given_back = GivenBack()
        self._donates = placement.shares_memory and not placement.has_streams

    def inputs(self, slots: Sequence[Input]) -> list[Supply]:
        """Functions that give the buffers of inputs: views of the tensors where possible."""
        read = [slot.index for slot in slots if not isinstance(slot, Donated)]
        parts: list[Supply] = []
        for kind, group in itertools.groupby(slots, _kind):
            of_kind = list(group)
            if kind is Donated:
                donated = [slot for slot in of_kind if isinstance(slot, Donated)]
                given_back = self._given_back
                parts.append(
                    DonatedInputs(self.placement, donated, read, self._held, given_back).buffers
                )
            elif kind is Parameter:
                indices = [slot.index for slot in of_kind]
                prepare = [preparation(slot.layout) for slot in of_kind]
                parts.append(StaticInputs(self.placement, indices, prepare).buffers)
            else:
                parts.append(self._fresh_inputs(of_kind))
        return parts

    def _fresh_inputs(self, slots: Sequence[Input]) -> Supply:
        """One function without calls of others, since every µs counts here."""
        taken = [
            (
                slot.index,
                KnownBuffers(self.placement, preparation(slot.layout), keeps=self._keeps),
            )
            for slot in slots
        ]
        device, on_gpu = self.placement.torch_device, self.placement.has_streams

        def supply(args: Sequence[Any], stream: int | None) -> list[Buffer]:
            buffers: list[Buffer] = []
            for index, known in taken:
                tensor = args[index]
                if on_gpu and tensor.device != device:  # a 0-d CPU tensor among others
                    tensor = tensor.to(device)
                address = tensor.data_ptr()
                buffer = known.by_address.get(address)
                if buffer is None:
                    buffer = known.load_if_it_comes_again(tensor, address, stream)
                buffers.append(buffer)
            return buffers

        return supply

    def constants(self, constants: Sequence[Constant]) -> Supply:
        """A function that gives the buffers of a graph's own tensors.

        A buffer is a view of its tensor's memory. If it cannot be, the tensor is copied at each
        call, unless it is a literal.
        """
        buffers = [self._load(constant) for constant in constants]
        pairs = enumerate(zip(constants, buffers, strict=True))
        copied = [(index, c) for index, (c, buffer) in pairs if _may_differ(c, buffer)]

        def refreshed(args: Sequence[Any], stream: int | None) -> list[Buffer]:
            again = list(buffers)
            for index, constant in copied:
                again[index] = self._load(constant)
            return again

        return refreshed if copied else lambda args, stream: buffers

    def _load(self, constant: Constant) -> Buffer:
        tensor = constant.tensor.to(self.placement.torch_device).contiguous()
        return import_tensor(tensor, self.placement)

    def fresh(self, tensor: torch.Tensor, stream: int | None) -> Buffer:
        """The buffer of a tensor that comes once."""
        return import_tensor(tensor.to(self.placement.torch_device), self.placement, stream)

    def taken(self, slots: Sequence[Input], buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """The buffers: they are of this device."""
        return buffers

    def tensors(self, results: Results, stream: int | None) -> list[torch.Tensor]:
        """Tensors over the memory of the results, or copies where torch cannot share it."""
        tensor_of = self._tensor_of
        return [tensor_of(buffer, stream) for (buffer,) in results]

    def write_back(
        self,
        slots: Sequence[Donated],
        tensors: Sequence[torch.Tensor],
        results: Results,
        stream: int | None,
    ) -> None:
        """Keep the buffers whose memory is the tensors' own, and copy what the others hold."""
        if self._donates:
            buffers = [buffer for (buffer,) in results]
            others = keep(slots, tensors, buffers, self._given_back)
            if not others:
                return
            slots = [slots[i] for i in others]
            tensors, results = [tensors[i] for i in others], [results[i] for i in others]
        write_back(slots, tensors, self.tensors(results, stream))

    def buffers(self, results: Results) -> list[Buffer]:
        """The buffer of each result."""
        return [buffer for (buffer,) in results]


def _kind(slot: Input) -> type[Input]:
    """How the buffer of an input is known: what is no parameter and not donated comes anew."""
    return type(slot) if isinstance(slot, Donated | Parameter) else Input


def _may_differ(constant: Constant, buffer: Buffer) -> bool:
    """Whether a buffer does not see its constant change."""
    return buffer_address(buffer) != constant.tensor.data_ptr() and not constant.is_literal
