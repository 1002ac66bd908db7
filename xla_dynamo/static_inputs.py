"""Parameters and buffers as PJRT buffers: imported once, known again by their address."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from xla_dynamo.runtime.buffers import import_tensor
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address

_addresses_of = torch.Tensor.data_ptr
Prepare = Callable[[torch.Tensor], torch.Tensor] | None


class StaticInputs:
    """The static inputs of one program, for as long as their tensors live.

    Several modules may share one graph (the layers of a stack do), so each place sees several
    parameters. A buffer keeps the memory that it views alive, so an address that is known here
    cannot have been freed and given out again.
    """

    def __init__(self, device: jax.Device, prepare: Sequence[Prepare]) -> None:
        """Take one function a place that readies its tensors for import (see InputLayout)."""
        self._device = device
        self._places = [_Place(p, self._sets_changed) for p in prepare]
        # Whole sets of buffers by the address of their first tensor: what most calls need.
        self._sets: dict[int, tuple[list[int], list[Buffer]]] = {}

    def buffers(self, tensors: Sequence[torch.Tensor], stream: int | None) -> list[Buffer]:
        """The buffers of these tensors, one a place, which see in-place changes."""
        addresses = list(map(_addresses_of, tensors))
        known = self._sets.get(addresses[0])
        if known is not None and known[0] == addresses:
            return known[1]
        found, lasting = [], True
        for place, address, tensor in zip(self._places, addresses, tensors, strict=True):
            buffer = place.buffers.get(address)
            if buffer is None:
                buffer = place.load(tensor, address, self._device, stream)
                lasting &= address in place.buffers
            found.append(buffer)
        if lasting:
            self._sets[addresses[0]] = (addresses, found)
        return found

    def _sets_changed(self) -> None:
        self._sets.clear()


class _Place:
    """The buffers that one argument of the program has had, by address."""

    __slots__ = ("__weakref__", "_changed", "_owners", "_prepare", "buffers")

    def __init__(self, prepare: Prepare, changed: Callable[[], None]) -> None:
        self._prepare, self._changed = prepare, weakref.WeakMethod(changed)
        self.buffers: dict[int, Buffer] = {}
        self._owners: dict[int, weakref.ref] = {}

    def load(
        self, tensor: torch.Tensor, address: int, device: jax.Device, stream: int | None
    ) -> Buffer:
        """Import a tensor, and keep the buffer if it views the tensor's own memory."""
        ready = tensor if self._prepare is None else self._prepare(tensor)
        # detach: a buffer that held the tensor itself, not just its memory, would keep the Python
        # object alive for good, and `forget` would never be called.
        buffer = import_tensor(ready.detach(), device, stream)
        # A buffer that is a copy would not see the parameter change in place.
        if address and buffer_address(buffer) == address:
            self._keep(tensor, address, buffer)
        return buffer

    def _keep(self, tensor: torch.Tensor, address: int, buffer: Buffer) -> None:
        for old, owner in list(self._owners.items()):
            if owner() is tensor:  # its storage was replaced, as by `parameter.data = ...`
                self._forget(old)
        place = weakref.ref(self)

        def forget(_: Any) -> None:
            if (alive := place()) is not None:
                alive._forget(address)

        self._owners[address] = weakref.ref(tensor, forget)
        self.buffers[address] = buffer

    def _forget(self, address: int) -> None:
        self.buffers.pop(address, None)
        self._owners.pop(address, None)
        if (changed := self._changed()) is not None:
            changed()
