"""Indexing on the 'xla' device: masks of bytes, and errors that torch's fake kernels leave out."""

import warnings
from typing import Any

import torch

from xla_dynamo.torch_private import OpOverload

aten = torch.ops.aten
_READS = frozenset({aten.index.Tensor, aten._unsafe_index.Tensor})
_WRITES = frozenset(
    {
        aten.index_put.default, aten.index_put_.default, aten._unsafe_index_put.default,
        aten._index_put_impl_.default,
    }
)  # fmt: skip
# Their second argument is a list of indices. As on other devices, these may be on the host.
INDEXING = _READS | _WRITES
_MASKS = (torch.bool, torch.uint8)


def with_boolean_masks(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an indexing operator, with masks of bool for those of bytes."""
    if not any(i is not None and i.dtype == torch.uint8 for i in args[1]):
        return args
    masks = [_boolean(i) for i in args[1]]
    return (args[0], masks, *args[2:])


def _boolean(index: torch.Tensor | None) -> torch.Tensor | None:
    if index is None or index.dtype != torch.uint8:
        return index
    warnings.warn(
        "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.",
        stacklevel=4,
    )
    return index != 0


def depends_on_values(op: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether only the elements of a mask tell whether the values that are written fit."""
    return op in _WRITES and args[2].numel() != 1 and any(_is_mask(i) for i in args[1])


def must_be_checked(op: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether a call may be wrong in a way that fake tensors do not see."""
    if op not in INDEXING or any(_is_mask(i) for i in args[1]):
        return False
    return op in _WRITES or 0 in args[0].size()


def _is_mask(index: torch.Tensor | None) -> bool:
    return index is not None and index.dtype in _MASKS
