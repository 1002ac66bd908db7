"""Find out whether tensors that a call changes share memory with others of the call.

A compiled graph reads all of its inputs as they were before the call. If memory is shared, that is
not what the user's code says: what it writes through one tensor, it reads through another. Torch
compiles for that where it meets such inputs while it traces, but no guard of its looks for them in
later calls. So each call of a graph that changes inputs looks at their addresses.
"""

import logging
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.execution.meanwhile import is_ahead
from xla_dynamo.graphs.wrappers import plain_tensors
from xla_dynamo.lowerings.builders.strides import storage_length
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_private import is_traceable_wrapper_subclass, leave_to_python, storage_id

log = logging.getLogger("xla_dynamo")
Tensor: TypeAlias = torch.Tensor
_address_of = Tensor.data_ptr
# The most elements that are looked at one by one; tensors with gaps that lie further are taken to
# share memory.
_MOST = 1 << 24


def in_eager_if_overlapping(
    compiled: Callable[..., Any],
    eager: Callable[..., Any],
    changed: Collection[int],
    examples: Sequence[Any],
) -> Callable[..., Any]:
    """A callable that calls `compiled`, or `eager` where what the call changes is shared.

    Args:
        compiled: the compiled graph.
        eager: the same graph in eager torch, with changes in place where the user wrote them.
        changed: the inputs that the graph changes, by number.
        examples: what it was compiled for.
    """
    places = [i for i, example in enumerate(examples) if isinstance(example, torch.Tensor)]
    if not changed or len(places) < 2:
        return compiled
    wrapped = any(is_traceable_wrapper_subclass(examples[i]) for i in places)
    elsewhere = any(examples[i].device.type == "xla" for i in places)
    fixed = all(type(n) is int for i in places for n in _geometry(examples[i]))
    pick = operator.itemgetter(*places)
    known: list[Any] = []

    def call(*args: Any) -> Any:
        nonlocal known
        tensors = pick(args)
        if wrapped or elsewhere or not fixed:
            key = [(_start(t), *_geometry(t)) for x in tensors for t in plain_tensors(x)]
        else:
            key = list(map(_address_of, tensors))
        if key != known:
            if not is_ahead() and not _are_apart(args, changed, places):
                metrics.increment("EagerOverlappingInputs")
                log.info(
                    "a call runs in eager torch: inputs share memory, and the graph changes one"
                )
                return eager(*args)
            known = [] if is_ahead() else key
        return compiled(*args)

    leave_to_python(call)
    return call


def _are_apart(args: Sequence[Any], changed: Collection[int], places: Sequence[int]) -> bool:
    written = [t for i in places if i in changed for t in plain_tensors(args[i])]
    read = [t for i in places if i not in changed for t in plain_tensors(args[i])]
    return are_apart(written, read)


def are_apart(
    changed: Sequence[Tensor], others: Sequence[Tensor], *, gaps_count: bool = False
) -> bool:
    """Whether no element of the changed tensors is one of another tensor, changed or not.

    With `gaps_count`, what lies in another's gaps is not apart from it.
    """
    places = len(changed)
    spans = sorted(
        ((*_span(t), place < places, t) for place, t in enumerate((*changed, *others))),
        key=operator.itemgetter(0, 1, 2),
    )
    spans = [span for span in spans if span[0] != span[1]]
    active: list[tuple[int, int, bool, Tensor]] = []
    for span in spans:
        start, _, is_changed, tensor = span
        active = [before for before in active if before[1] > start]
        for _, _, before_changed, before in active:
            if not (is_changed or before_changed):
                continue
            if gaps_count or _share_elements(before, tensor):
                return False
        active.append(span)
    return True


def _span(tensor: Tensor) -> tuple[int, int]:
    """The addresses where a tensor begins and where it ends; the same if it has no memory."""
    start = _start(tensor)
    if not start or not tensor.numel():
        return start, start
    return start, start + storage_length(tensor.shape, tensor.stride()) * tensor.itemsize


def _start(tensor: Tensor) -> int:
    if tensor.device.type == "xla":  # memory that torch does not know: its storage stands for it
        return (storage_id(tensor) << 40) + tensor.storage_offset() * tensor.itemsize
    return _address_of(tensor)


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return (*tensor.shape, *tensor.stride())


def _share_elements(a: Tensor, b: Tensor) -> bool:
    """Whether tensors whose spans overlap have an element in common: each may lie in gaps."""
    first = min(_start(a), _start(b))
    size = a.itemsize
    offsets = [(_start(t) - first) // size for t in (a, b)]
    length = max(_span(t)[1] - first for t in (a, b)) // size
    aligned = all((_start(t) - first) % size == 0 for t in (a, b))
    if b.itemsize != size or not aligned or length > _MOST:
        return True
    numbers = torch.arange(length, device="cpu")
    places = [
        numbers.as_strided(t.shape, t.stride(), offset).reshape(-1)
        for t, offset in zip((a, b), offsets, strict=True)
    ]
    taken = torch.zeros(length, dtype=torch.bool, device="cpu")
    taken[places[0]] = True
    return bool(taken[places[1]].any())
