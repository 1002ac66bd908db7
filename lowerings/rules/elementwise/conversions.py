"""dtype conversions and copies: _to_copy, clone, copies, bit views."""

from typing import Any

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import (
    Value,
    broadcast_to,
    cast,
    dtype_of,
    reshape,
    shape_of,
)
from xla_dynamo.lowerings.builders.dtypes import real_dtype, tensor_type
from xla_dynamo.lowerings.rules.elementwise.complex_numbers import join_parts, split_parts
from xla_dynamo.lowerings.table import Context, aten, lowers


@lowers(
    aten.clone.default,
    aten.contiguous.default,
    aten.lift.default,
    aten.lift_fresh.default,
)
def same(ctx: Context, x: Value, memory_format: torch.memory_format | None = None) -> Value:
    return x  # values have no strides here: the memory format is the output layout's affair


@lowers(aten._to_copy.default)
def to_copy(ctx: Context, x: Value, **to: Any) -> Value:
    return cast(x, ctx.out.dtype)


@lowers(torch.ops.prims.convert_element_type.default)  # left by some of torch's decompositions
def convert_element_type(ctx: Context, x: Value, dtype: torch.dtype) -> Value:
    return cast(x, dtype)


@lowers(aten.copy.default)
def copy(ctx: Context, x: Value, src: Value, non_blocking: bool = False) -> Value:
    return broadcast_to(cast(src, ctx.out.dtype), ctx.out.shape)


@lowers(aten.view.dtype)
def view_dtype(ctx: Context, x: Value, dtype: torch.dtype) -> Value:
    return _same_bits(x, dtype)


def _same_bits(x: Value, dtype: torch.dtype) -> Value:
    """Read the same bytes as another dtype, whose width stretches or shrinks the last dimension."""
    source, shape = dtype_of(x), shape_of(x)
    if source is dtype:
        return x
    if source.is_complex:
        pairs = split_parts(x)
        if dtype.itemsize == source.itemsize:  # complex64 as int64 or float64, of any rank
            return reshape(_same_bits(pairs, dtype), shape)
        return _same_bits(reshape(pairs, (*shape[:-1], shape[-1] * 2)), dtype)
    if dtype.is_complex:
        pairs = _same_bits(x if shape else reshape(x, (1,)), real_dtype(dtype))
        *lead, last = shape_of(pairs)
        values = join_parts(reshape(pairs, (*lead, last // 2, 2)))
        return values if shape else reshape(values, ())
    if torch.bool in (source, dtype):  # a byte in torch, a bit in StableHLO
        if dtype is torch.bool:
            return cast(_same_bits(x, torch.uint8), dtype)
        return _same_bits(cast(x, torch.uint8), dtype)
    ratio = source.itemsize / dtype.itemsize
    if ratio > 1:
        split = hlo.bitcast_convert(tensor_type((*shape, int(ratio)), dtype), x)
        return reshape(split, (*shape[:-1], shape[-1] * int(ratio)))
    if ratio < 1:
        shape = (*shape[:-1], int(shape[-1] * ratio))
        wide = hlo.bitcast_convert(tensor_type(shape, dtype), reshape(x, (*shape, int(1 / ratio))))
        # XLA makes one conversion of two, of a wrong shape where the second splits these again.
        return hlo.optimization_barrier([wide])
    return hlo.bitcast_convert(tensor_type(shape, dtype), x)


@lowers(
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
)
def checked_before(ctx: Context, *args: Any, **kwargs: Any) -> None:
    # Sizes and dtypes of a compiled graph are fixed: torch has checked them on the way here.
    return None


@lowers(
    aten._functional_sym_constrain_range.default,
    aten._functional_sym_constrain_range_for_size.default,
)
def checked_before_functionally(
    ctx: Context,
    size: int,
    min: int | None,
    max: int | None,
    dep_token: Value,
) -> Value:
    return dep_token
