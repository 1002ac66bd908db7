"""The PJRT buffers of tensors that come again: imported once, and recognized by address.

A buffer keeps the memory that it views alive, so an address that is known here cannot have been
freed and given out again. An argument always has one shape, dtype and stride, since the program is
compiled for them. So comparing the address is enough. Buffers are dropped when their tensors die.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.errors import UnsupportedTensor
from xla_dynamo.runtime.buffers import import_tensor
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address
from xla_dynamo.runtime.placement import Placement
from xla_dynamo.runtime.weak_table import WeakTable
from xla_dynamo.torch_private import is_zero_tensor

_addresses_of = torch.Tensor.data_ptr
Prepare = Callable[[torch.Tensor], torch.Tensor] | None


class KnownBuffers:
    """The buffers that one argument of a program has had, by address.

    Several modules may share one program (the layers of a stack do), so one argument sees several
    parameters.
    """

    __slots__ = ("_keeps", "_last", "_placement", "_prepare", "_table", "by_address")

    def __init__(
        self,
        placement: Placement,
        prepare: Prepare,
        *,
        keeps: bool = True,
        changed: Callable[[], None] | None = None,
    ) -> None:
        """Take the function that readies tensors for import, and what to call on a change."""
        self._placement, self._prepare, self._keeps = placement, prepare, keeps
        self._last = 0
        self._table: WeakTable[int, Buffer] = WeakTable(changed)
        self.by_address = self._table.values

    def load(self, tensor: torch.Tensor, address: int, stream: int | None) -> Buffer:
        """Import a tensor, and keep the buffer if it views the tensor's own memory."""
        # detach: a buffer that held the tensor itself, not just its memory, would keep the Python
        # object alive for good, and the buffer would never be dropped.
        given = ready(tensor, address, self._prepare)
        buffer = import_tensor(given.detach(), self._placement, stream)
        # A buffer that is a copy would not see the tensor change in place.
        if address and buffer_address(buffer) == address:
            # Alone: its storage may have been replaced, as by `parameter.data = ...`.
            self._table.put_alone(address, tensor, buffer)
        return buffer

    def load_if_it_comes_again(
        self, tensor: torch.Tensor, address: int, stream: int | None
    ) -> Buffer:
        """Import a tensor, and keep the buffer only the second time in a row.

        A cache or a mask comes with every call; most inputs come once, and keeping one costs more
        than importing it.
        """
        if address == self._last and self._keeps:
            return self.load(tensor, address, stream)
        self._last = address
        return import_tensor(ready(tensor, address, self._prepare), self._placement, stream)


def ready(tensor: torch.Tensor, address: int, prepare: Prepare) -> torch.Tensor:
    """The tensor to import for a tensor: its memory has the elements in the program's order."""
    if not address and tensor.numel():
        tensor = _with_memory(tensor)
    # These two bits are looked up at each import: Dynamo has no guard for those of a tangent.
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if prepare is None else prepare(tensor)


def _with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with memory for one that has none: zeros, or an error."""
    if is_zero_tensor(tensor):
        empty = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
        )
        return empty.zero_()
    raise UnsupportedTensor(
        f"a compiled graph was called with a tensor of shape {tuple(tensor.shape)} that has no "
        "memory: a fake tensor, or one whose storage was freed; call it with a real one"
    )


class StaticInputs:
    """All the parameters and buffers of a program: most calls bring the same set again."""

    def __init__(
        self, placement: Placement, indices: Sequence[int], prepare: Sequence[Prepare]
    ) -> None:
        """Take the inputs' indices and the functions that ready them for import."""
        # With two indices or more, itemgetter returns a tuple.
        self._pick = operator.itemgetter(*indices, indices[-1])
        self._slots = [KnownBuffers(placement, p, changed=self._forget_sets) for p in prepare]
        self._sets: dict[int, tuple[list[int], list[Buffer]]] = {}

    def buffers(self, args: Sequence[Any], stream: int | None) -> list[Buffer]:
        """The buffers of the static ones among a call's arguments; they see in-place changes."""
        tensors = self._pick(args)
        addresses = list(map(_addresses_of, tensors))
        known = self._sets.get(addresses[0])
        if known is not None and known[0] == addresses:
            return known[1]
        found, lasting = [], True
        for slot, address, tensor in zip(self._slots, addresses, tensors, strict=False):
            buffer = slot.by_address.get(address)
            if buffer is None:
                buffer = slot.load(tensor, address, stream)
                lasting &= address in slot.by_address
            found.append(buffer)
        if lasting:
            self._sets[addresses[0]] = (addresses, found)
        return found

    def _forget_sets(self) -> None:
        self._sets.clear()
