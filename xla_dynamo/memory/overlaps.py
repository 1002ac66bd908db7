"""Find out whether tensors that a call changes share memory with others of the call."""

import bisect
import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from xla_dynamo.lowerings.builders.strides import storage_length
from xla_dynamo.torch_private import storage_id

Tensor: TypeAlias = torch.Tensor
_address_of = Tensor.data_ptr
# The most elements that are looked at one by one; tensors with gaps that lie further are taken to
# share memory.
_MOST = 1 << 24


def are_apart(
    changed: Sequence[Tensor], others: Sequence[Tensor], *, gaps_count: bool = False
) -> bool:
    """Whether no element of the changed tensors is one of another tensor, changed or not.

    With `gaps_count`, what lies in another's gaps is not apart from it.
    """
    count = len(changed)
    spans = sorted(
        ((*_span(t), index < count, t) for index, t in enumerate((*changed, *others))),
        key=operator.itemgetter(0, 1, 2),
    )
    spans = [span for span in spans if span[0] != span[1]]
    # Those that begin before a tensor and may reach into it: the changed ones, and the others. Two
    # that only read may overlap, so a reader looks at the changed ones alone.
    active: dict[bool, list[tuple[int, int, bool, Tensor]]] = {True: [], False: []}
    for span in spans:
        start, _, is_changed, tensor = span
        for kind in (True, False) if is_changed else (True,):
            active[kind] = [before for before in active[kind] if before[1] > start]
            for _, _, _, before in active[kind]:
                if gaps_count or _share_elements(before, tensor):
                    return False
        active[is_changed].append(span)
    return True


class _Known(NamedTuple):
    """What was apart in a call.

    Attributes:
        changed: the addresses of what it changed.
        others: those of its other tensors.
        starts: where the memory that it changed begins, in order.
        ends: for each of these, where what begins there or before ends, the last of them.
    """

    changed: list[int]
    others: list[int]
    starts: list[int]
    ends: list[int]


class Apartness:
    """Whether what calls change is apart from their other tensors, most of which come again.

    A call of a step of decoding brings a new position beside parameters and caches that it has
    always had. So only what lies elsewhere than in the call before is looked at.
    """

    def __init__(self, *, gaps_count: bool = False) -> None:
        """Take whether what lies in another's gaps is not apart from it."""
        self._gaps_count = gaps_count
        self._known: _Known | None = None

    def holds(self, changed: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
        """`are_apart`, for tensors whose sizes and strides are the same in each call.

        All have addresses of torch's.
        """
        known = self._known  # other threads may put another one there
        places = list(map(_address_of, changed)), list(map(_address_of, others))
        if known is not None and places[0] == known.changed:
            if places[1] == known.others:
                return True
            pairs = zip(others, places[1], known.others, strict=True)
            if all(_is_beside(tensor, known) for tensor, now, then in pairs if now != then):
                self._known = known._replace(others=places[1])
                return True
        if not are_apart(changed, others, gaps_count=self._gaps_count):
            return False
        spans = sorted(span for span in map(_span, changed) if span[0] != span[1])
        ends = itertools.accumulate((end for _, end in spans), max)
        self._known = _Known(*places, [start for start, _ in spans], list(ends))
        return True


def _is_beside(tensor: Tensor, known: _Known) -> bool:
    """Whether a tensor's span has nothing of those that are changed."""
    start, end = _span(tensor)
    before = bisect.bisect_left(known.starts, end)
    return start == end or not before or known.ends[before - 1] <= start


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses where a tensor begins and where it ends; the same if it has no memory."""
    start = start_of(tensor)
    if not start or not tensor.numel():
        return start, start
    return start, start + storage_length(tensor.shape, tensor.stride()) * tensor.itemsize


def start_of(tensor: Tensor) -> int:
    """The address where a tensor begins, or what stands for it."""
    if tensor.device.type == "xla":  # memory that torch does not know: its storage stands for it
        return (storage_id(tensor) << 40) + tensor.storage_offset() * tensor.itemsize
    return _address_of(tensor)


def geometry_of(tensor: Tensor) -> tuple[Any, ...]:
    """Its sizes and strides."""
    return (*tensor.shape, *tensor.stride())


def _share_elements(a: Tensor, b: Tensor) -> bool:
    """Whether tensors whose spans overlap have an element in common: each may lie in gaps."""
    first = min(start_of(a), start_of(b))
    size = a.itemsize
    offsets = [(start_of(t) - first) // size for t in (a, b)]
    length = max(_span(t)[1] - first for t in (a, b)) // size
    aligned = all((start_of(t) - first) % size == 0 for t in (a, b))
    if b.itemsize != size or not aligned or length > _MOST:
        return True
    numbers = torch.arange(length, device="cpu")
    elements = [
        numbers.as_strided(t.shape, t.stride(), offset).reshape(-1)
        for t, offset in zip((a, b), offsets, strict=True)
    ]
    taken = torch.zeros(length, dtype=torch.bool, device="cpu")
    taken[elements[0]] = True
    return bool(taken[elements[1]].any())
