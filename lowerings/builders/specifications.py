"""Specifications of kernels: frozen dataclasses, written into modules as text and read back."""

import dataclasses
import json
import types
import typing
from typing import Any, Self

import torch

from xla_dynamo.errors import LoweringError


class Specification:
    """What a call of a kernel computes: the base of frozen dataclasses.

    Fields are numbers, texts, dtypes, other specifications, None, and tuples of such. A field that
    `__init__` does not take is no part of the text.
    """

    def __post_init__(self) -> None:
        """Let no object be what the kernel cannot compute.

        Raises:
            LoweringError: `check` has refused it.
        """
        self.check()

    def check(self) -> None:
        """Call `refuse` if the kernel cannot compute this."""

    def refuse(self, reason: str) -> typing.NoReturn:
        """Raise the error of a specification that is wrong."""
        raise LoweringError(f"a call of {type(self).__name__} is none: {reason}")

    def text(self) -> str:
        """The specification as JSON."""
        return json.dumps(_encoded(self))

    @classmethod
    def read(cls, text: str) -> Self:
        """The specification that `text` wrote.

        Raises:
            LoweringError: the text has other fields, or values of other types.
        """
        try:
            return _decoded(json.loads(text), cls)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise LoweringError(f"{text!r} is no call of {cls.__name__}: {error}") from error


def _fields(cls: Any) -> dict[str, Any]:
    """The types of the fields that `__init__` takes."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _encoded(value: Any) -> Any:
    if isinstance(value, Specification):
        return {name: _encoded(getattr(value, name)) for name in _fields(type(value))}
    if isinstance(value, tuple):
        return [_encoded(v) for v in value]
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value


def _decoded(value: Any, hint: Any) -> Any:
    """What `_encoded` made JSON of."""
    inner = typing.get_args(hint)
    if isinstance(hint, types.UnionType):  # with None
        return None if value is None else _decoded(value, inner[0])
    if typing.get_origin(hint) is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple(_decoded(v, kind) for v, kind in zip(value, kinds, strict=True))
    if hint is torch.dtype:
        value = getattr(torch, value)
    elif issubclass(hint, Specification):
        fields = _fields(hint)
        if value.keys() != fields.keys():
            raise ValueError(f"it has {', '.join(value)}, and not {', '.join(fields)}")
        return hint(**{name: _decoded(value[name], kind) for name, kind in fields.items()})
    if type(value) is not hint:
        raise TypeError(f"{value!r} is no {hint.__name__}")
    return value
