"""Run a call in eager torch where inputs share memory and the graph changes one of them.

A compiled graph reads all of its inputs as they were before the call. If memory is shared, that is
not what the user's code says: what it writes through one tensor, it reads through another. Torch
compiles for that where it meets such inputs while it traces, but no guard of its looks for them in
later calls. So each call of a graph that changes inputs looks at their addresses.
"""

import logging
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from xla_dynamo.graphs.wrappers import InnerTensors, plain_tensors
from xla_dynamo.memory.overlaps import Apartness, are_apart, geometry_of, start_of
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_private import is_traceable_wrapper_subclass, leave_to_python
from xla_dynamo.variants.meanwhile import is_ahead

log = logging.getLogger("xla_dynamo")


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
    indices = [i for i, example in enumerate(examples) if isinstance(example, torch.Tensor)]
    if not changed or len(indices) < 2:
        return compiled
    inside = [tensor for i in indices for tensor in (examples[i], *plain_tensors(examples[i]))]
    fixed = all(type(n) is int for tensor in inside for n in geometry_of(tensor))
    if fixed and all(examples[i].device.type != "xla" for i in indices):
        is_apart = _of_known_sizes(changed, examples, indices)
    else:
        is_apart = _of_any_sizes(changed, indices)

    def call(*args: Any) -> Any:
        if is_ahead() or is_apart(args):
            return compiled(*args)
        metrics.increment("EagerOverlappingInputs")
        log.info("a call runs in eager torch: inputs share memory, and the graph changes one")
        return eager(*args)

    leave_to_python(call)
    return call


def _of_known_sizes(
    changed: Collection[int], examples: Sequence[Any], indices: Sequence[int]
) -> Callable[[Sequence[Any]], bool]:
    """What tells whether what a call changes is apart, for tensors of the sizes of the examples."""
    written = _tensors([i for i in indices if i in changed], examples)
    read = _tensors([i for i in indices if i not in changed], examples)
    apartness = Apartness()
    return lambda args: apartness.holds(written(args), read(args))


def _tensors(
    indices: Sequence[int], examples: Sequence[Any]
) -> Callable[[Sequence[Any]], Sequence[torch.Tensor]]:
    """What gives the plain tensors of some arguments."""
    if not indices:
        return lambda args: ()
    # With two indices or more, itemgetter returns a tuple.
    pick = operator.itemgetter(*indices, indices[-1])
    if not any(is_traceable_wrapper_subclass(examples[i]) for i in indices):
        return lambda args: pick(args)[:-1]
    inner = [InnerTensors() for _ in indices]
    return lambda args: [
        tensor for of_one, x in zip(inner, pick(args), strict=False) for tensor in of_one.of(x)
    ]


def _of_any_sizes(
    changed: Collection[int], indices: Sequence[int]
) -> Callable[[Sequence[Any]], bool]:
    """The same for tensors whose sizes change, or that have no addresses of torch's."""
    known: list[Any] = []

    def is_apart(args: Sequence[Any]) -> bool:
        nonlocal known
        tensors = [tensor for i in indices for tensor in plain_tensors(args[i])]
        key = [(start_of(t), *geometry_of(t)) for t in tensors]
        if key != known:
            if not _are_apart(args, changed, indices):
                return False
            known = key
        return True

    return is_apart


def _are_apart(args: Sequence[Any], changed: Collection[int], indices: Sequence[int]) -> bool:
    written = [t for i in indices if i in changed for t in plain_tensors(args[i])]
    read = [t for i in indices if i not in changed for t in plain_tensors(args[i])]
    return are_apart(written, read)
