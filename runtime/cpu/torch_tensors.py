"""Tensors of torch's over XLA's memory, which scripts of calls make and delete."""

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from xla_dynamo.runtime.cpu import call_scripts, torch_functions
from xla_dynamo.runtime.cpu.call_scripts import NULL, Argument, Script, number


def make_tensor(
    script: Script, place: int, address: Argument, like: torch.Tensor, held: list[Any]
) -> None:
    """Have a script make a tensor, and put it into a slot.

    Args:
        script: calls torch's function.
        place: the number of the slot.
        address: of the first element.
        like: has the tensor's shape, strides and dtype; its elements are not read.
        held: gets the memory of shape and strides, which has to live as long as the script.
    """
    script.call(
        torch_functions.function("create_tensor_from_blob_v2"),
        address,
        number(like.dim()),
        held_array(held, ctypes.c_int64, like.shape),
        held_array(held, ctypes.c_int64, like.stride()),
        NULL,
        number(torch_functions.dtype(like.dtype)),
        NULL,  # of the CPU
        NULL,
        call_scripts.place_of_slot(place),
        NULL,  # strided
        NULL,
        NULL,
    )


def delete_tensors(script: Script, places: Sequence[int]) -> None:
    """Have a script delete the tensors in some slots."""
    for place in places:
        script.call(torch_functions.function("delete_tensor_object"), call_scripts.slot(place))


def held_array(held: list[Any], kind: Any, values: Sequence[Any]) -> Argument:
    """The address of numbers of a type of ctypes, in memory that a list holds from now on."""
    made = (kind * len(values))(*values)
    held.append(made)
    return number(ctypes.addressof(made))
