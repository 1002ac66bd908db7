"""The values that rules handle: their shapes and dtypes, numbers, and constants made of numbers."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import (
    dtype_name,
    element_type,
    real_dtype,
    tensor_type,
    torch_dtype,
)

Value: TypeAlias = ir.Value
Number: TypeAlias = bool | int | float | complex


def shape_of(x: Value) -> tuple[int, ...]:
    """The static shape of a value."""
    return tuple(x.type.shape)


def rank_of(x: Value) -> int:
    """The number of dimensions of a value."""
    return x.type.rank


def dtype_of(x: Value) -> torch.dtype:
    """The torch dtype of a value."""
    return torch_dtype(x.type.element_type)


def is_value(x: Any) -> bool:
    """Whether an argument of a rule is a tensor (and not a number, None or a list)."""
    return isinstance(x, ir.Value)


def numel_of(x: Value) -> int:
    """The number of elements of a value."""
    return math.prod(x.type.shape)


def nbytes_of(x: Value) -> int:
    """The size of a value in bytes; an element takes one at least."""
    element, parts = x.type.element_type, 1
    if isinstance(element, ir.ComplexType):
        element, parts = element.element_type, 2
    return numel_of(x) * parts * max(element.width // 8, 1)


def defining_operation(x: Value) -> ir.Operation | None:
    """The operation that x is a result of; None for an argument of a block."""
    owner = x.owner
    return None if isinstance(owner, ir.Block) else owner


def defining_name(x: Value) -> str | None:
    """The name of the operation that x is a result of; None for an argument of a block."""
    return getattr(x.owner, "name", None)  # a block has no name


def is_known(x: Value, depth: int = 8) -> bool:
    """Whether XLA knows a value: it depends on no argument, as far as `depth` operations tell."""
    op = defining_operation(x)
    if op is None or depth == 0:
        return False
    return all(is_known(operand, depth - 1) for operand in op.operands)


def normalize_dim(dim: int, rank: int) -> int:
    """A non-negative dimension; 0-d tensors accept 0 and -1, as in torch."""
    return dim % max(rank, 1)


def normalize_dims(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Non-negative dimensions; None and the empty list mean all of them, as in reductions.

    torch's `reduction_dims` takes the empty list to mean none, unlike eager's `sum`.
    """
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return list(range(rank))
    listed = [dims] if isinstance(dims, int) else dims
    return [normalize_dim(d, rank) for d in listed] if rank else []


def _attribute(value: Any, dtype: torch.dtype) -> ir.Attribute:
    type_ = element_type(dtype)
    if dtype.is_floating_point:
        return ir.FloatAttr.get(type_, float(value))
    if dtype is torch.bool:
        return ir.IntegerAttr.get(type_, int(bool(value)))
    bits = torch.iinfo(dtype).bits
    wrapped = int(value) % (1 << bits)  # torch wraps a scalar that does not fit
    if not dtype.is_signed:
        # Parsed, because the constructor takes no number above 2**63.
        return ir.Attribute.parse(f"{wrapped} : ui{bits}")
    return ir.IntegerAttr.get(type_, wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def full(shape: Sequence[int], value: Number, dtype: torch.dtype) -> Value:
    """A tensor filled with one number, which is cast to dtype as torch casts scalars."""
    if dtype.is_complex:
        part, number = real_dtype(dtype), complex(value)
        return hlo.complex(full(shape, number.real, part), full(shape, number.imag, part))
    if isinstance(value, complex):
        value = value.real
    type_ = tensor_type(tuple(shape), dtype)
    return hlo.constant(ir.DenseElementsAttr.get_splat(type_, _attribute(value, dtype)))


def full_like(x: Value, value: Number) -> Value:
    """A tensor of x's shape and dtype filled with one number."""
    return full(shape_of(x), value, dtype_of(x))


def scalar(value: Number, dtype: torch.dtype) -> Value:
    """A 0-d constant."""
    return full((), value, dtype)


def array(values: Any, dtype: torch.dtype) -> Value:
    """A small constant tensor from (nested lists of) integers, floats or bools."""
    if dtype is torch.bool:
        # MLIR packs bools eight to the byte; as bytes they need no packing.
        bits = np.asarray(values, dtype=bool)
        zeros = full(bits.shape, 0, torch.int8)
        not_equal = hlo.ComparisonDirectionAttr.get("NE")
        return hlo.compare(array(bits, torch.int8), zeros, not_equal)
    numpy_dtype = np.dtype(dtype_name(dtype))
    data = np.asarray(values, dtype=numpy_dtype, order="C")
    return hlo.constant(
        ir.DenseElementsAttr.get(data, type=element_type(dtype), shape=list(data.shape))
    )


def iota(shape: Sequence[int], dim: int, dtype: torch.dtype) -> Value:
    """Counts 0, 1, 2, ... along one dimension."""
    return hlo.iota(tensor_type(tuple(shape), dtype), dim)


def lowest(dtype: torch.dtype) -> Number:
    """The least value of a real dtype (-inf for floating point): the identity of max."""
    if dtype is torch.bool:
        return False
    return -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min


def highest(dtype: torch.dtype) -> Number:
    """The greatest value of a real dtype (inf for floating point): the identity of min."""
    if dtype is torch.bool:
        return True
    return math.inf if dtype.is_floating_point else torch.iinfo(dtype).max


def refuse_nothing(name: str, x: Value, dim: int | None = None) -> None:
    """Raise as eager does where a dimension, or all of them, has no element to choose from.

    Raises:
        IndexError: it has none.
    """
    if dim is not None and rank_of(x) and shape_of(x)[dim] == 0:
        raise IndexError(f"{name}(): Expected reduction dim {dim} to have non-zero size.")
    if dim is None and 0 in shape_of(x):
        raise IndexError(f"{name}(): Expected reduction dim to be specified for no elements.")


def source_of(x: Value) -> tuple[Value, list[int]]:
    """The value that x is a transpose of, which may be x itself, and the permutation."""
    if defining_name(x) == "stablehlo.transpose":
        op = x.owner
        return op.operands[0], list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    return x, list(range(rank_of(x)))


def number_of(x: Value) -> float | None:
    """The number that all elements of a value are, if they are one constant of a float dtype."""
    number = splat_of(x)
    return float(number.value) if isinstance(number, ir.FloatAttr) else None


def splat_of(x: Value) -> ir.FloatAttr | ir.IntegerAttr | None:
    """The number, as an attribute, that all elements of a value are, if they are one constant."""
    while defining_name(x) in ("stablehlo.broadcast_in_dim", "stablehlo.transpose"):
        x = x.owner.operands[0]
    if defining_name(x) != "stablehlo.constant":
        return None
    value = ir.DenseElementsAttr(x.owner.attributes["value"])
    if not value.is_splat:
        return None
    number, element = value.get_splat_value(), value.type.element_type
    if isinstance(element, ir.FloatType):
        return ir.FloatAttr(number)
    return ir.IntegerAttr(number) if isinstance(element, ir.IntegerType) else None
