"""Frozen values that a program reads by handles, as torch's operators take them."""

from collections.abc import Sequence
from typing import Any

from xla_dynamo.runtime.buffers import export_buffer, import_tensor
from xla_dynamo.runtime.cpu.packed_weights import Window, handles_of, packed
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address
from xla_dynamo.runtime.placement import Placement


def pack(
    values: Sequence[Buffer], windows: Sequence[tuple[Any, ...]], placement: Placement
) -> Buffer:
    """The buffer of the handles of values, int64, one for each; it holds what they stand for.

    Args:
        values: buffers of the CPU.
        windows: of each weight of a convolution what it is packed for; () for other values, which
            stay as they are.
        placement: where the handles are read.

    Raises:
        RuntimeError: jaxlib has made a copy of the handles, which would not hold the values.
    """
    tensors = [export_buffer(value) for value in values]
    made = [
        packed(tensor, Window(*window)) if window else tensor
        for tensor, window in zip(tensors, windows, strict=True)
    ]
    handles = handles_of(made)
    buffer = import_tensor(handles, placement)
    if buffer_address(buffer) != handles.data_ptr():
        raise RuntimeError("jaxlib copied handles of packed weights: use options={'libraries': ()}")
    return buffer
