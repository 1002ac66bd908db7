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
from xla_dynamo.memory.overlaps import are_apart, geometry_of, start_of
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_private import is_traceable_wrapper_subclass, leave_to_python
from xla_dynamo.variants.meanwhile import is_ahead

log = logging.getLogger("xla_dynamo")
_address_of = torch.Tensor.data_ptr


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
    wrapped = any(is_traceable_wrapper_subclass(examples[i]) for i in indices)
    inner = [InnerTensors() for _ in indices]
    elsewhere = any(examples[i].device.type == "xla" for i in indices)
    inside = [tensor for i in indices for tensor in (examples[i], *plain_tensors(examples[i]))]
    fixed = all(type(n) is int for tensor in inside for n in geometry_of(tensor))
    pick = operator.itemgetter(*indices)
    known: list[Any] = []

    def call(*args: Any) -> Any:
        nonlocal known
        tensors = pick(args)
        if wrapped:
            pairs = zip(inner, tensors, strict=True)
            tensors = [tensor for of_one, x in pairs for tensor in of_one.of(x)]
        if elsewhere or not fixed:
            key = [(start_of(t), *geometry_of(t)) for t in tensors]
        else:
            key = list(map(_address_of, tensors))
        if key != known:
            if not is_ahead() and not _are_apart(args, changed, indices):
                metrics.increment("EagerOverlappingInputs")
                log.info(
                    "a call runs in eager torch: inputs share memory, and the graph changes one"
                )
                return eager(*args)
            known = [] if is_ahead() else key
        return compiled(*args)

    leave_to_python(call)
    return call


def _are_apart(args: Sequence[Any], changed: Collection[int], indices: Sequence[int]) -> bool:
    written = [t for i in indices if i in changed for t in plain_tensors(args[i])]
    read = [t for i in indices if i not in changed for t in plain_tensors(args[i])]
    return are_apart(written, read)
