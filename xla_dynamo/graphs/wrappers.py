"""The tensors inside of wrapper subclasses, such as jagged tensors."""

import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from xla_dynamo.torch_private import is_traceable_wrapper_subclass

_Path = tuple[str, ...]


class InnerTensors:
    """The plain tensors of an argument that is mostly the same object, as a parameter is.

    A wrapper is asked once for their names, which takes as long as all else that is done with it.
    """

    __slots__ = ("_get", "_object")

    def __init__(self) -> None:
        """Know no object yet."""
        self._object: weakref.ref[torch.Tensor] | None = None
        self._get: Callable[[torch.Tensor], Sequence[torch.Tensor]] = plain_tensors

    def of(self, value: torch.Tensor) -> Sequence[torch.Tensor]:
        """The tensor itself, or those inside of it."""
        if self._object is None or self._object() is not value:
            self._object, self._get = weakref.ref(value), _getter(list(_paths(value)))
        return self._get(value)


def _getter(paths: Sequence[_Path]) -> Callable[[torch.Tensor], Sequence[torch.Tensor]]:
    """What gives the tensors at some paths of a value."""
    names = [".".join(path) for path in paths]
    if not any(names):  # a plain tensor, or a wrapper of nothing
        return lambda value: (value,) * len(names)
    # With two names or more, attrgetter returns a tuple.
    get = operator.attrgetter(*names, names[-1])
    return lambda value: get(value)[:-1]


def _paths(value: Any) -> Iterator[_Path]:
    """The names by which one comes to each plain tensor. Wrappers have other things beside them."""
    if is_traceable_wrapper_subclass(value):
        for name in value.__tensor_flatten__()[0]:
            for path in _paths(getattr(value, name)):
                yield name, *path
    elif isinstance(value, torch.Tensor):
        yield ()


def plain_tensors(value: Any) -> list[torch.Tensor]:
    """A tensor, or the tensors inside of a wrapper such as a jagged one: no others reach XLA."""
    return [functools.reduce(getattr, path, value) for path in _paths(value)]
