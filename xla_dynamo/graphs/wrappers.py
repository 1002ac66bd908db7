"""The tensors inside of wrapper subclasses, such as jagged tensors."""

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from xla_dynamo.torch_private import is_traceable_wrapper_subclass

_Path = tuple[str, ...]


class InnerTensors:
    """The plain tensors of an argument that is mostly the same object, as a parameter is.

    A wrapper is asked once for their names, which takes as long as all else that is done with it.
    """

    __slots__ = ("_object", "_paths")

    def __init__(self) -> None:
        """Know no object yet."""
        self._object: weakref.ref[torch.Tensor] | None = None
        self._paths: list[_Path] = []

    def of(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The tensor itself, or those inside of it."""
        if self._object is None or self._object() is not value:
            self._object, self._paths = weakref.ref(value), list(_paths(value))
        return [functools.reduce(getattr, path, value) for path in self._paths]


def _paths(value: Any) -> Iterator[_Path]:
    """The names by which one comes to each plain tensor. Wrappers have other things beside them."""
    if is_traceable_wrapper_subclass(value):
        for name in value.__tensor_flatten__()[0]:
            for path in _paths(getattr(value, name)):
                yield name, *path
    elif isinstance(value, torch.Tensor):
        yield ()


def plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, or the tensors inside of a wrapper such as a jagged one: no others reach XLA."""
    for path in _paths(value):
        yield functools.reduce(getattr, path, value)
