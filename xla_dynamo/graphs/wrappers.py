"""The tensors inside of wrapper subclasses, such as jagged tensors."""

from collections.abc import Iterator
from typing import Any

import torch

from xla_dynamo.torch_private import is_traceable_wrapper_subclass


def plain_tensors(value: Any) -> Iterator[torch.Tensor]:
    """A tensor, or the tensors inside of a wrapper such as a jagged one: no others reach XLA."""
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        for name in names:
            yield from plain_tensors(getattr(value, name))
    elif isinstance(value, torch.Tensor):
        yield value
