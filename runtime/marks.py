"""The shardings that tensors are marked with, by the memory that they have.

A mark belongs to a storage, so that the tensors that autograd and AOTAutograd make of a parameter
have it too, and to the elements that the tensor shows of it: a view has a mark of its own.
"""

import threading
import weakref
from typing import Any

import torch

from xla_dynamo.runtime.mesh import Sharding
from xla_dynamo.torch_private import storage_id

_lock = threading.RLock()  # a storage may die while it is held: garbage is collected anywhere
# By the address of torch's storage, for as long as that lives: the shardings of the tensors that
# show it, by their elements.
_marks: dict[int, tuple[dict[Any, Sharding], Any]] = {}
_MOST_VIEWS = 64
_ever = False


def are_there() -> bool:
    """Whether any tensor that lives is marked: cheap, for who looks at each call."""
    return bool(_marks)


def were_ever_there() -> bool:
    """Whether any tensor was ever marked in this process, or is to be."""
    return _ever


def expect() -> None:
    """Say that there will be marks."""
    global _ever
    _ever = True


def mark(tensor: torch.Tensor, sharding: Sharding) -> None:
    """Mark a tensor, in the place of an earlier mark; its views and its base keep theirs."""
    expect()
    key, elements = storage_id(tensor), _elements(tensor)

    def forget(reference: Any) -> None:
        with _lock:
            if key in _marks and _marks[key][1] is reference:
                del _marks[key]

    with _lock:
        if key not in _marks or _marks[key][1]() is None:
            _marks[key] = {}, weakref.ref(tensor.untyped_storage(), forget)
        shardings, _ = _marks[key]
        shardings.pop(elements, None)
        shardings[elements] = sharding
        if len(shardings) > _MOST_VIEWS:
            del shardings[next(iter(shardings))]


def clear(tensor: torch.Tensor) -> None:
    """Take a tensor's mark off, if it has one."""
    with _lock:
        shardings, _ = _marks.get(storage_id(tensor), ({}, None))
        shardings.pop(_elements(tensor), None)
        if not shardings:
            _marks.pop(storage_id(tensor), None)


def sharding_of(tensor: torch.Tensor) -> Sharding | None:
    """The sharding that a tensor is marked with; None without one."""
    return asked_of(storage_id(tensor), _elements(tensor)) if _marks else None


def asked_of(storage: int, elements: tuple[Any, ...]) -> Sharding | None:
    """The sharding that a storage's tensor of these elements is marked with.

    Args:
        storage: the address of torch's storage.
        elements: the tensor's size, stride, offset and dtype.
    """
    known = _marks.get(storage)
    return known[0].get(elements) if known is not None else None


def _elements(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype
