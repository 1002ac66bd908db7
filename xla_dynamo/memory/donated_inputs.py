"""Donate mutated inputs: the program writes their new values into their own memory.

A donated buffer is a view of torch's memory that the program may overwrite, so the new value of a
parameter or a cache needs no copy. The program gives the memory back as a buffer of the result,
which the next call donates again. If the memory is misaligned, if the platform copies, or if inputs
overlap, this is not possible, and the new value is copied back.
"""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.memory.known_buffers import ready
from xla_dynamo.memory.overlaps import Apartness
from xla_dynamo.memory.restriding import preparation
from xla_dynamo.programs.program import Donated
from xla_dynamo.runtime.buffers import import_donated, import_undonated
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.weak_table import WeakTable
from xla_dynamo.torch_private import invert_perm

_BITS = torch.int16
_address_of = torch.Tensor.data_ptr
_is_inference = torch.Tensor.is_inference
_is_conj, _is_neg = torch.Tensor.is_conj, torch.Tensor.is_neg


class GivenBack:
    """The buffers that a program gave back for inputs whose memory it wrote into.

    An input has one shape, dtype and stride, so its address tells its buffer. Nobody else may have
    such a buffer, since PJRT takes it from all others when it is donated. It keeps the memory
    alive, and goes when the tensor does.
    """

    def __init__(self) -> None:
        """Have none yet."""
        self._last: dict[int, int] = {}
        # A list for each, which a call empties: no entry is made or removed then.
        self._table: WeakTable[tuple[int, int], list[Buffer]] = WeakTable()

    def take(self, index: int, tensor: torch.Tensor, address: int) -> Buffer | None:
        """The buffer of the input of an index, which a call is about to donate, if there is one."""
        kept = self._table.values.get((index, address))
        if kept is None or _is_conj(tensor) or _is_neg(tensor):
            return None
        try:
            return kept.pop()
        except IndexError:  # a call in another thread has it, or one that has failed
            return None

    def put(self, index: int, tensor: torch.Tensor, address: int, buffer: Buffer) -> None:
        """Keep a buffer, if the memory comes for the second time in a row."""
        kept = self._table.values.get((index, address))
        if kept is not None:
            kept[:] = [buffer]
        elif self._last.get(index) == address:
            # Alone: its storage may have been replaced, as by `parameter.data = ...`.
            self._table.put_alone((index, address), tensor, [buffer])
        else:
            self._last[index] = address


class DonatedInputs:
    """The inputs of a program that it mutates."""

    def __init__(
        self,
        placement: Placement,
        donations: Sequence[Donated],
        read: Sequence[int],
        constants: Sequence[torch.Tensor],
        given_back: GivenBack,
    ) -> None:
        """Take the donations, the indices of the inputs that are only read, and the constants."""
        self._placement, self._constants, self._given_back = placement, constants, given_back
        self._slots = [(one.index, preparation(one.layout), one.as_bits) for one in donations]
        self._read = list(read)
        self._apartness = Apartness(gaps_count=True)

    def buffers(self, args: Sequence[Any], stream: int | None) -> list[Buffer]:
        """The buffers of the tensors that a call will change."""
        tensors = [args[index] for index, *_ in self._slots]
        # Eager refuses to change inference tensors elsewhere, and so does copying back.
        foreign = not torch.is_inference_mode_enabled() and any(map(_is_inference, tensors))
        apart = not foreign and self._are_apart(tensors, args)
        give = import_donated if apart else import_undonated
        found = []
        for tensor, (index, prepare, as_bits) in zip(tensors, self._slots, strict=True):
            address = _address_of(tensor)
            buffer = self._given_back.take(index, tensor, address) if apart else None
            if buffer is None:
                given = ready(tensor, address, prepare).detach()
                buffer = give(given.view(_BITS) if as_bits else given, self._placement, stream)
            found.append(buffer)
        return found

    def _are_apart(self, donated: Sequence[torch.Tensor], args: Sequence[Any]) -> bool:
        """Whether nothing else of a call lies in the memory that it changes.

        XLA takes it for granted, and would read what it has overwritten. `overlapping_calls` keeps
        Dynamo's graphs from it; others, and the constants of a graph, meet it here alone.
        """
        others = [*(args[index] for index in self._read), *self._constants]
        return self._apartness.holds(donated, others)


def write_back(
    slots: Sequence[Donated], tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> None:
    """Copy the new values that did not land in the tensors' own memory."""
    for slot, tensor, value in zip(slots, tensors, values, strict=True):
        if _address_of(tensor) != _address_of(value):
            numbers = value.view(tensor.dtype) if slot.as_bits else value
            copy_back(tensor, numbers.permute(invert_perm(slot.layout.permutation)))


def keep(
    slots: Sequence[Donated],
    tensors: Sequence[torch.Tensor],
    buffers: Sequence[Buffer],
    given_back: GivenBack,
) -> list[int]:
    """Keep the buffers of new values that landed in the tensors' own memory; tells the others."""
    others = []
    for number, (slot, tensor, buffer) in enumerate(zip(slots, tensors, buffers, strict=True)):
        address = _address_of(tensor)
        if address and buffer_address(buffer) == address:
            given_back.put(slot.index, tensor, address, buffer)
        else:
            others.append(number)
    return others


def copy_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor the elements of another."""
    with torch.no_grad():
        tensor.copy_(value)
