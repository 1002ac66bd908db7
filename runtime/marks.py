"""The shardings that tensors are marked with, by the memory that they have.

A mark belongs to a storage, so that the tensors that autograd and AOTAutograd make of a parameter
have it too, and to the elements that the tensor shows of it: a view has a mark of its own.
"""

import threading
from typing import Any

import torch

from xla_dynamo.process_state import kept
from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.runtime.weak_table import WeakTable
from xla_dynamo.torch_private import storage_id

_lock = threading.RLock()  # for threads that mark tensors of one storage
_MOST_VIEWS = 64


class _Marks:
    def __init__(self) -> None:
        # By the address of torch's storage: the shardings of the tensors that show it, by their
        # elements.
        self.table: WeakTable[int, dict[Any, Sharding]] = WeakTable()
        self.by_storage = self.table.values
        self.ever = False


_state = kept(_Marks)


def are_there() -> bool:
    """Whether any tensor that lives is marked: cheap, for who looks at each call."""
    return bool(_state.by_storage)


def were_ever_there() -> bool:
    """Whether any tensor was ever marked in this process, or is to be."""
    return _state.ever


def expect() -> None:
    """Say that there will be marks."""
    _state.ever = True


def mark(tensor: torch.Tensor, sharding: Sharding) -> None:
    """Mark a tensor, in the place of an earlier mark; its views and its base keep theirs."""
    expect()
    key, elements = storage_id(tensor), _elements(tensor)
    with _lock:
        shardings = _state.by_storage.get(key)
        if shardings is None:
            shardings = {}
            _state.table.put(key, tensor.untyped_storage(), shardings)
        shardings.pop(elements, None)
        shardings[elements] = sharding
        if len(shardings) > _MOST_VIEWS:
            del shardings[next(iter(shardings))]


def clear(tensor: torch.Tensor) -> None:
    """Take a tensor's mark off, if it has one."""
    with _lock:
        shardings = _state.by_storage.get(storage_id(tensor), {})
        shardings.pop(_elements(tensor), None)
        if not shardings:
            _state.table.remove(storage_id(tensor))


def sharding_of(tensor: torch.Tensor) -> Sharding | None:
    """The sharding that a tensor is marked with; None without one."""
    return asked_of(storage_id(tensor), _elements(tensor)) if _state.by_storage else None


def asked_of(storage: int, elements: tuple[Any, ...]) -> Sharding | None:
    """The sharding that a storage's tensor of these elements is marked with.

    Args:
        storage: the address of torch's storage.
        elements: the tensor's size, stride, offset and dtype.
    """
    known = _state.by_storage.get(storage)
    return known.get(elements) if known is not None else None


def _elements(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype
