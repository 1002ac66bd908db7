"""Donate mutated inputs: the program writes their new values into their own memory.

A donated buffer is a view of torch's memory that the program may overwrite, so the new value of a
parameter or a cache needs no copy. If the memory is misaligned, if the platform copies, or if
inputs overlap, this is not possible, and the new value is copied back.
"""

from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.memory.known_buffers import ready
from xla_dynamo.memory.overlaps import are_apart
from xla_dynamo.memory.restriding import preparation
from xla_dynamo.programs.program import Donated
from xla_dynamo.runtime.buffers import import_donated, import_undonated
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.torch_private import invert_perm

_BITS = torch.int16
_address_of = torch.Tensor.data_ptr
_is_inference = torch.Tensor.is_inference


class DonatedInputs:
    """The inputs of a program that it mutates."""

    def __init__(
        self,
        placement: Placement,
        donations: Sequence[Donated],
        read: Sequence[int],
        constants: Sequence[torch.Tensor],
    ) -> None:
        """Take the donations, the indices of the inputs that are only read, and the constants."""
        self._placement, self._constants = placement, constants
        self._slots = [(one.index, preparation(one.layout), one.as_bits) for one in donations]
        self._read = list(read)
        self._apart: list[int] = []

    def buffers(self, args: Sequence[Any], stream: int | None) -> list[Buffer]:
        """The buffers of the tensors that a call will change."""
        tensors = [args[index] for index, *_ in self._slots]
        # Eager refuses to change inference tensors elsewhere, and so does copying back.
        foreign = not torch.is_inference_mode_enabled() and any(map(_is_inference, tensors))
        apart = not foreign and self._are_apart(tensors, args)
        give = import_donated if apart else import_undonated
        found = []
        for tensor, (_, prepare, as_bits) in zip(tensors, self._slots, strict=True):
            given = ready(tensor, _address_of(tensor), prepare)
            found.append(
                give(given.detach().view(_BITS) if as_bits else given, self._placement, stream)
            )
        return found

    def _are_apart(self, donated: Sequence[torch.Tensor], args: Sequence[Any]) -> bool:
        """Whether nothing else of a call lies in the memory that it changes.

        XLA takes it for granted, and would read what it has overwritten. `overlapping_calls` keeps
        Dynamo's graphs from it; others, and the constants of a graph, meet it here alone.
        """
        others = [*(args[index] for index in self._read), *self._constants]
        addresses = list(map(_address_of, (*donated, *others)))
        if addresses == self._apart:
            return True
        if not are_apart(donated, others, gaps_count=True):
            return False
        self._apart = addresses
        return True


def write_back(
    slots: Sequence[Donated], tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> None:
    """Copy the new values that did not land in the tensors' own memory."""
    for slot, tensor, value in zip(slots, tensors, values, strict=True):
        if _address_of(tensor) != _address_of(value):
            numbers = value.view(tensor.dtype) if slot.as_bits else value
            copy_back(tensor, numbers.permute(invert_perm(slot.layout.permutation)))


def copy_back(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Give a tensor the elements of another."""
    with torch.no_grad():
        tensor.copy_(value)
