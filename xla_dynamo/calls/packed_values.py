"""Kernels with packed weights that a program executes, by the addresses of their plans."""

from collections.abc import Sequence

from xla_dynamo.lowerings.passes.pack_weights import Packed
from xla_dynamo.runtime.buffers import export_buffer, import_tensor
from xla_dynamo.runtime.cpu.call_scripts import handles_of
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address
from xla_dynamo.runtime.placement import Placement


def pack(
    calls: Sequence[Packed], values: Sequence[Sequence[Buffer]], placement: Placement
) -> Buffer:
    """The buffer of the addresses, int64, one for each call; it holds what they stand for.

    Args:
        calls: the calls.
        values: for each the buffers of the CPU that it reads: the weight, and a bias if it has one.
        placement: where the addresses are read.

    Raises:
        RuntimeError: jaxlib has made a copy of the addresses, which would not hold the values.
    """
    pairs = zip(calls, values, strict=True)
    handles = handles_of([call.form.packed(*map(export_buffer, read)) for call, read in pairs])
    buffer = import_tensor(handles, placement)
    if buffer_address(buffer) != handles.data_ptr():
        raise RuntimeError("jaxlib copied handles of packed weights: use options={'libraries': ()}")
    return buffer
