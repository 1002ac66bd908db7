"""Weights of convolutions in the layout that oneDNN wants, and handles by which scripts read them.

torch's operator asks oneDNN for that layout, and reorders weights once
(`torch.ops.mkldnn._reorder_convolution_weight`); its convolutions then take them as they are.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from xla_dynamo.runtime.cpu.call_scripts import delete
from xla_dynamo.torch_private import new_handle

_ALIGNMENT = 64  # XLA:CPU copies what is not aligned so


class Window(NamedTuple):
    """What a weight is packed for.

    Attributes:
        padding: of both sides of each spatial dimension.
        stride: the strides.
        dilation: the dilations.
        groups: the number of groups.
        image: the shape of the image, [batch, channels, *spatial].
    """

    padding: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    image: tuple[int, ...]


def packed(weight: torch.Tensor, window: Window) -> torch.Tensor:
    """The weight [out, in / groups, *window], float32, in oneDNN's own layout."""
    padding, stride, dilation, groups, image = window
    with torch.inference_mode(False), torch.no_grad():
        reorder = torch.ops.mkldnn._reorder_convolution_weight
        return reorder(weight, padding, stride, dilation, groups, image)


def handles_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Handles of tensors, int64, one for each: scripts read the tensors by them.

    The result's memory holds the tensors, so they live as long as a buffer over it.
    """
    holder = _Holder(8 * len(tensors) + _ALIGNMENT)
    offset = -ctypes.addressof(ctypes.c_char.from_buffer(holder)) % _ALIGNMENT
    holder.handles = [_pointer(new_handle(tensor)) for tensor in tensors]
    memory = torch.frombuffer(holder, dtype=torch.int64, count=len(tensors), offset=offset)
    memory.copy_(torch.tensor(holder.handles, dtype=torch.int64))
    return memory


class _Holder(bytearray):
    """The memory of handles, which deletes them at its end."""

    handles: Sequence[int] = ()

    def __del__(self) -> None:
        """Let go of the tensors."""
        for handle in self.handles:
            delete(handle)


def _pointer(capsule: Any) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, None)
