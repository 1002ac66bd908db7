"""torch dtypes to MLIR element types and back."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jax.extend.mlir import ir

from xla_dynamo.errors import UnsupportedDtype


def _complex(part: Any) -> Callable[[], ir.Type]:
    return lambda: ir.ComplexType.get(part.get())


def _unsigned(width: int) -> Callable[[], ir.Type]:
    return lambda: ir.IntegerType.get_unsigned(width)


def _signless(width: int) -> Callable[[], ir.Type]:
    # StableHLO writes signed integers as MLIR's signless ones (spec, "Types").
    return lambda: ir.IntegerType.get_signless(width)


_ELEMENT_TYPES: dict[torch.dtype, Callable[[], ir.Type]] = {
    torch.bool: _signless(1),
    torch.int8: _signless(8),
    torch.int16: _signless(16),
    torch.int32: _signless(32),
    torch.int64: _signless(64),
    torch.uint8: _unsigned(8),
    torch.uint16: _unsigned(16),
    torch.uint32: _unsigned(32),
    torch.uint64: _unsigned(64),
    torch.float16: ir.F16Type.get,
    torch.bfloat16: ir.BF16Type.get,
    torch.float32: ir.F32Type.get,
    torch.float64: ir.F64Type.get,
    torch.complex64: _complex(ir.F32Type),
    torch.complex128: _complex(ir.F64Type),
    torch.float8_e4m3fn: ir.Float8E4M3FNType.get,
    torch.float8_e5m2: ir.Float8E5M2Type.get,
    torch.float8_e4m3fnuz: ir.Float8E4M3FNUZType.get,
    torch.float8_e5m2fnuz: ir.Float8E5M2FNUZType.get,
}

SUPPORTED_DTYPES: tuple[torch.dtype, ...] = tuple(_ELEMENT_TYPES)


def element_type(dtype: torch.dtype) -> ir.Type:
    """The MLIR element type of a torch dtype, in the current MLIR context.

    Raises:
        UnsupportedDtype: StableHLO has no such type.
    """
    if dtype not in _ELEMENT_TYPES:
        raise _unsupported(dtype)
    return _ELEMENT_TYPES[dtype]()


def dtype_name(dtype: torch.dtype) -> str:
    """The name without "torch.", which is numpy's and JAX's name too."""
    return str(dtype).removeprefix("torch.")


def _unsupported(dtype: torch.dtype) -> UnsupportedDtype:
    known = ", ".join(map(dtype_name, SUPPORTED_DTYPES))
    return UnsupportedDtype(f"{dtype} has no StableHLO type; cast the tensor to one of: {known}")


@functools.cache
def _dtypes_by_name() -> dict[str, torch.dtype]:
    with ir.Context():
        return {str(make()): dtype for dtype, make in _ELEMENT_TYPES.items()}


def torch_dtype(type_: ir.Type) -> torch.dtype:
    """The torch dtype of an MLIR element type."""
    return _dtypes_by_name()[str(type_)]


def tensor_type(shape: tuple[int, ...] | list[int], dtype: torch.dtype) -> ir.RankedTensorType:
    """The ranked tensor type of a shape and a torch dtype, in the current MLIR context."""
    return ir.RankedTensorType.get(list(shape), element_type(dtype))


def permuted_type(given: ir.Type, permutation: Sequence[int]) -> ir.Type:
    """The type of a tensor after a transpose by this permutation."""
    return ir.RankedTensorType.get([given.shape[dim] for dim in permutation], given.element_type)


def real_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of one part of a complex dtype; any other dtype unchanged.

    Raises:
        UnsupportedDtype: StableHLO has no such complex type.
    """
    if dtype is torch.complex32:
        raise _unsupported(dtype)
    return dtype.to_real()


def row_major_layout(given: ir.Type) -> ir.Attribute:
    """A layout as XLA has it: dimensions from the innermost in memory to the outermost."""
    order = np.arange(given.rank)[::-1].copy()
    return ir.DenseIntElementsAttr.get(order, type=ir.IndexType.get())
