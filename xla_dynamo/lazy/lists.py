"""Operators in place on lists of tensors, of which several share memory: one tensor at a time.

Eager's kernels for the CPU go through a list in order, so that `torch._foreach_add_([x, x], 1)`
adds twice, and `torch._foreach_add_([x, y], [y, x])` adds the new x to y. A graph computes all
results before it writes any.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from xla_dynamo.lazy.contents import span
from xla_dynamo.lazy.signatures import Signature
from xla_dynamo.torch_private import schema, storage_id


def writes_lists(signature: Signature) -> bool:
    """Whether an operator writes into a list of tensors, and that not as `out=`.

    With `out=`, eager too computes all before it writes any.
    """
    written = [schema(signature.op).arguments[position] for position, _ in signature.written]
    return any("List[Tensor]" in str(a.type) and not a.is_out for a in written)


def one_at_a_time(signature: Signature, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel for lists that is called for each tensor if what it writes is read elsewhere."""
    written = {name for _, name in signature.written}
    names = list(signature.positions)

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = dict(zip(names, args, strict=False)) | kwargs
        count = len(bound[next(n for n in names if n in written)])
        if count < 2 or not _is_read_elsewhere(bound, written, count):
            return kernel(*args, **kwargs)
        for at in range(count):
            kernel(
                *(_part(a, at, count) for a in args),
                **{name: _part(a, at, count) for name, a in kwargs.items()},
            )
        result = next((n for n in signature.results if n is not None), None)
        return bound[result] if result else None

    return call


def _part(value: Any, at: int, count: int) -> Any:
    """What a call for one tensor is given: of lists, and vectors of numbers, the one element."""
    if isinstance(value, list | tuple) and len(value) == count:
        return [value[at]]
    if isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == count:
        return value[at : at + 1]
    return value


def _is_read_elsewhere(bound: dict[str, Any], written: set[str], count: int) -> bool:
    """Whether memory that is written for one tensor of a list is read or written for another."""
    ranges: dict[int, list[tuple[int, int, int, bool]]] = {}
    for name, value in bound.items():
        for index, tensor in _indexed(value, count):
            start = tensor.storage_offset() * tensor.itemsize
            end = start + span(tensor.size(), tensor.stride()) * tensor.itemsize
            ranges.setdefault(storage_id(tensor), []).append((start, end, index, name in written))
    return any(_meet(of_one) for of_one in ranges.values() if len(of_one) > 1)


def _meet(ranges: list[tuple[int, int, int, bool]]) -> bool:
    active: list[tuple[int, int, int, bool]] = []
    for start, end, index, is_written in sorted(ranges):
        active = [other for other in active if other[1] > start]
        if any(other[2] != index and (is_written or other[3]) for other in active):
            return True
        active.append((start, end, index, is_written))
    return False


def _indexed(value: Any, count: int) -> Iterator[tuple[int, torch.Tensor]]:
    """The tensors of an argument, each with its index in the lists; -1 for all."""
    if isinstance(value, torch.Tensor):
        yield -1, value
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == count:
        yield from ((at, v) for at, v in enumerate(value) if isinstance(v, torch.Tensor))
