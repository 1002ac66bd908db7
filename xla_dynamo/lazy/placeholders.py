"""Tensors of the 'xla' device without elements, of which graphs are made that are only written."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from xla_dynamo.errors import ExecutionError
from xla_dynamo.lazy import contents
from xla_dynamo.lazy.contents import Value, new_tensor


class Placeholder:
    """Stands for a buffer that nobody gives.

    Attributes:
        nbytes: the bytes that it takes.
        why: why there is none.
    """

    nbytes = 0
    why = "it is for graphs that are only written"


class GivenAway(Placeholder):
    """Stands for a buffer that a program has written a result into."""

    why = "a program has written a result into its memory, which set_buffer_donation allows"


def create_placeholder_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of a shape and dtype that has no elements.

    What depends on it can be written as StableHLO and HLO. To compute it is an ExecutionError.
    """
    contents.refuse_dtype(dtype)
    like = torch.empty(tuple(shape), dtype=dtype, device="meta")
    buffer: Any = Placeholder()
    with contents.lock:
        return new_tensor(Value((dtype, like.size(), like.stride(), 0), buffer))


def refuse(values: Iterable[Value]) -> None:
    """Raise ExecutionError if a value is a placeholder."""
    for value in values:
        if isinstance(value.buffer, Placeholder):
            dtype, size, *_ = value.geometry
            raise ExecutionError(
                f"a placeholder of shape {tuple(size)} and {dtype} has no elements: "
                f"{value.buffer.why}"
            )


def is_placeholder(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the device has no elements."""
    return isinstance(contents.cell_of(tensor).value.buffer, Placeholder)
