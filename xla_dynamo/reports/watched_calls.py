"""What the calls of an executable did, counted where `explain` watches: nobody else pays for it."""

import dataclasses
import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.events import BuiltExecutable
from xla_dynamo.programs.program import Input
from xla_dynamo.runtime.process_memory import resident_bytes

# Of how many calls the memory before and after is kept.
_MOST_SAMPLES = 256
_ALIGNMENT = {"cpu": 64, "cuda": 16}


@dataclasses.dataclass(slots=True)
class BorderCopy:
    """An input that had to be copied on its way into a program.

    Attributes:
        index: which of the graph's inputs.
        reason: why its own memory would not do.
        advice: what the user can do about it.
        bytes: of one copy.
        times: in how many calls.
    """

    index: int
    reason: str
    advice: str
    bytes: int
    times: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MemorySample:
    """The process's resident bytes before and after a call, which ended at `end` (perf_counter)."""

    end: float
    before: int
    after: int


class WatchedCalls:
    """The calls of one executable.

    Attributes:
        built: the executable.
        count: how many calls returned.
        seconds: how long all of them took.
        copies: the inputs that were copied, by number.
        asked, computed: how many positions of the dynamic sizes all calls asked for, and how many
            the program computed, up to its bounds; 0 for an executable of exact sizes.
        memory: of the latest calls.
    """

    def __init__(self, built: BuiltExecutable, highs: Sequence[int]) -> None:
        self.built = built
        self.count, self.seconds = 0, 0.0
        self.copies: dict[int, BorderCopy] = {}
        self.asked = self.computed = 0
        self.memory: list[MemorySample] = []
        self._lock = threading.Lock()
        self._highs = tuple(highs)
        self._inputs = built.program.of(Input)
        executable = built.executable
        self._placement = None if executable is None else executable.placement

    @property
    def through_python(self) -> int:
        """How many calls of Python functions one run of the program makes: kernels of torch."""
        target = 'custom_call_target="xla_dynamo.call"'
        return self.built.hlo.count(target) if self.built.program.calls_torch else 0

    @property
    def wasted(self) -> float:
        """Elements computed for each one asked for: 1 without padding."""
        return self.computed / self.asked if self.asked else 1.0

    def watching(self, call: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        """The call, which is counted as long as somebody has the report."""
        counted = weakref.ref(self)

        def watched(args: list[Any]) -> list[Any]:
            self = counted()
            if self is None:
                return call(args)
            found = self._copied(args)
            values = args[-1].tolist() if self._highs else []
            before, start = resident_bytes(), time.perf_counter()
            results = call(args)
            end = time.perf_counter()
            with self._lock:
                self._count(found, values, end - start)
                self.memory.append(MemorySample(end, before, resident_bytes()))
                del self.memory[:-_MOST_SAMPLES]
            return results

        return watched

    def _count(self, found: list[BorderCopy], values: Sequence[int], seconds: float) -> None:
        self.count += 1
        self.seconds += seconds
        for copy in found:
            self.copies.setdefault(copy.index, copy).times += 1
        if self._highs:
            self.asked += math.prod(values)
            self.computed += math.prod(self._highs)

    def _copied(self, args: Sequence[Any]) -> list[BorderCopy]:
        placement = self._placement
        # Tensors of the 'xla' device are buffers, and those of a mesh are cut into shards.
        if placement is None or placement.tensors is not None or len(placement.devices) > 1:
            return []
        found = []
        for slot in self._inputs:
            tensor = args[slot.index] if slot.index < len(args) else None
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                why = _why_copied(tensor, slot, placement.shares_memory)
                if why is not None:
                    nbytes = tensor.numel() * tensor.element_size()
                    found.append(BorderCopy(slot.index, *why, nbytes))
        return found


def _why_copied(tensor: torch.Tensor, slot: Input, shares: bool) -> tuple[str, str] | None:
    """Why a tensor is copied into a buffer, and what helps; None where its memory is shared."""
    if tensor.is_conj() or tensor.is_neg():
        return "it is a lazy conjugate or negative", "call `.resolve_conj().resolve_neg()` on"
    if not slot.layout.is_dense:
        strides = tuple(tensor.stride())
        return f"its elements have gaps between them (strides {strides})", "call `.contiguous()` on"
    if not shares:
        return "this platform shares no memory with torch", ""
    alignment = _ALIGNMENT.get(tensor.device.type, 1)
    if tensor.data_ptr() % alignment:
        why = f"its memory begins at an address that is no multiple of {alignment}"
        return why, "call `.clone()` on"
    return None
