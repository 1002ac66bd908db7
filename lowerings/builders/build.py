"""The vocabulary of the rules: StableHLO operations with torch's shapes, dtypes and numbers."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import element_type, real_dtype, tensor_type
from xla_dynamo.lowerings.builders.shapes import (
    broadcast_in_dim,
    broadcast_shapes,
    broadcast_to,
    concatenate,
    expand_dims,
    pad,
    pad_dim,
    reshape,
    reverse,
    slice_,
    slice_at,
    slice_dim,
    transpose,
    update_slice,
)
from xla_dynamo.lowerings.builders.values import (
    Number,
    Value,
    array,
    defining_name,
    dtype_of,
    full,
    full_like,
    highest,
    iota,
    is_known,
    is_value,
    lowest,
    normalize_dim,
    normalize_dims,
    numel_of,
    rank_of,
    scalar,
    shape_of,
)
from xla_dynamo.torch_private import get_computation_dtype

_sizes_vary = contextvars.ContextVar("sizes_vary", default=False)

# --- types and shapes --------------------------------------------------------------------------


def cast(x: Value, dtype: torch.dtype) -> Value:
    """x.to(dtype): complex to real keeps the real part, anything to bool compares with zero."""
    source = dtype_of(x)
    if source is dtype:
        return x
    element_type(dtype)  # raises for a dtype that StableHLO has not
    if dtype is torch.bool:
        return compare(x, full_like(x, 0), "NE")
    if source.is_complex and not dtype.is_complex:
        return cast(hlo.real(x), dtype)
    if dtype.is_complex and not source.is_complex:
        re = cast(x, real_dtype(dtype))
        return hlo.complex(re, full_like(re, 0))
    if source.is_floating_point and not dtype.is_floating_point and not dtype.is_complex:
        return _cast_to_whole(x, dtype)
    if source is torch.bool and dtype.is_floating_point:
        # XLA takes a product with a converted boolean for a choice, and infinity * 0 is NaN.
        zero = full(shape_of(x), 0, dtype)
        return where(x, full_like(zero, 1), zero)
    if dtype is torch.float8_e4m3fn:
        # torch saturates to the largest number where XLA makes NaN of what is too large.
        x = hlo.clamp(scalar(-448, source), x, scalar(448, source))
    return hlo.convert(tensor_type(shape_of(x), dtype), x)


def _cast_to_whole(x: Value, dtype: torch.dtype) -> Value:
    """Floats to integers as x86 converts them; XLA saturates, and makes zero of NaN.

    What does not fit, NaN included, becomes the least int32 or int64, and narrower types keep the
    low bits of one of those: -1.0 is 255 in uint8, infinity is 0.
    """
    if dtype_of(x).itemsize == 1:
        x = cast(x, torch.float32)
    shape = shape_of(x)
    if dtype is torch.uint64:
        signed = hlo.convert(tensor_type(shape, dtype), _cast_to_whole(x, torch.int64))
        return where(
            compare(x, full_like(x, 0), "GT"), hlo.convert(tensor_type(shape, dtype), x), signed
        )
    via = torch.int64 if dtype in (torch.int64, torch.uint32) else torch.int32
    inside = compare(x, full_like(x, 2.0 ** (torch.iinfo(via).bits - 1)), "LT")
    whole = hlo.convert(tensor_type(shape, via), x)
    return cast(where(inside, whole, full(shape, torch.iinfo(via).min, via)), dtype)


def bitcast(x: Value, dtype: torch.dtype) -> Value:
    """The same bits under another dtype of the same width."""
    return hlo.bitcast_convert(tensor_type(shape_of(x), dtype), x)


def overlay(x: Value, part: Value, padding: Sequence[tuple[int, int, int]]) -> Value:
    """Write part over x where padding it with (low, high, interior) a dimension puts it."""
    low, high, interior = zip(*padding, strict=True)
    written = pad(full(shape_of(part), True, torch.bool), False, low, high, interior)
    return where(written, pad(part, 0, low, high, interior), x)


# --- elementwise -------------------------------------------------------------------------------


def compare(x: Value, y: Value, direction: str) -> Value:
    """Compare two values of one type; direction is EQ, NE, LT, LE, GT or GE.

    Floats compare as IEEE 754 demands: anything but NE is false with a NaN.
    """
    return hlo.compare(x, y, hlo.ComparisonDirectionAttr.get(direction))


def add(x: Value, y: Value) -> Value:
    """The sum of two values of one type; of booleans, whether one is true.

    XLA says the same of `add`, but makes False of True + True where it knows both beforehand.
    """
    return hlo.or_(x, y) if dtype_of(x) is torch.bool else hlo.add(x, y)


def where(condition: Value, x: Value, y: Value) -> Value:
    """Select between two values of one type; a 0-d condition is fine too."""
    return hlo.select(condition, x, y)


def is_nan(x: Value) -> Value:
    """Where x is NaN; a bool tensor."""
    return compare(x, x, "NE")


def divide(x: Value, y: Value) -> Value:
    """The quotient, rounded once, so that floor(x / 49) is what it is in eager.

    XLA multiplies by the reciprocal of a divisor that is a constant or shared by many elements.
    """
    if dtype_of(x).is_floating_point and _shared(y) and _may_round(y):
        y = where(is_nan(x), x, y)  # the divisor is another one for each x, as far as XLA sees
    return hlo.divide(x, y)


@contextlib.contextmanager
def for_other_sizes() -> Iterator[None]:
    """Emit nothing that is right only since a number, which may be a size, is a power of two."""
    token = _sizes_vary.set(True)
    try:
        yield
    finally:
        _sizes_vary.reset(token)


def _shared(y: Value) -> bool:
    return defining_name(y) == "stablehlo.broadcast_in_dim" or is_known(y)


def _may_round(divisor: Value) -> bool:
    """Whether a product with the reciprocal may be another number than the quotient."""
    return _sizes_vary.get() or not _is_power_of_two(divisor)


def is_nonzero(y: Value) -> bool:
    """Whether a value is one whole number everywhere, and that is not zero."""
    if defining_name(y) != "stablehlo.constant":
        return False
    attribute = ir.DenseIntElementsAttr(y.owner.attributes["value"])
    return attribute.is_splat and bool(attribute.get_splat_value().value)


def _is_power_of_two(y: Value) -> bool:
    if defining_name(y) != "stablehlo.constant":
        return False
    attribute = ir.DenseFPElementsAttr(y.owner.attributes["value"])
    return attribute.is_splat and math.frexp(attribute.get_splat_value().value)[0] == 0.5


# --- contractions, reductions, loops -----------------------------------------------------------

_REDUCERS: dict[str, tuple[Callable[[Value, Value], Value], Callable[[torch.dtype], Number]]] = {
    "sum": (add, lambda dtype: 0),
    "prod": (hlo.multiply, lambda dtype: 1),
    "max": (hlo.maximum, lowest),
    "min": (hlo.minimum, highest),
    "and": (hlo.and_, lambda dtype: True if dtype is torch.bool else -1),
    "or": (hlo.or_, lambda dtype: 0),
    "xor": (hlo.xor, lambda dtype: 0),
}


def identity(kind: str, dtype: torch.dtype) -> Number:
    """The number that a reduction begins with, and that changes nothing."""
    return _REDUCERS[kind][1](dtype)


def combiner(kind: str) -> Callable[[Value, Value], Value]:
    """The builder that a reduction folds two values with."""
    return _REDUCERS[kind][0]


def region(owner_region: ir.Region, types: Sequence[ir.Type], body: Callable[..., Any]) -> None:
    """Fill an operation's region with one block that returns what body(*arguments) returns."""
    block = owner_region.blocks.append(*types)
    with ir.InsertionPoint(block):
        results = body(*block.arguments)
        hlo.return_([results] if is_value(results) else list(results))


def reduce(x: Value, dims: Sequence[int], kind: str) -> Value:
    """Reduce dims by "sum", "prod", "max", "min", "and", "or" or "xor"; max and min carry NaN."""
    if not dims:
        return x
    if kind in ("max", "min") and dtype_of(x) in (torch.bfloat16, torch.float16):
        # No number changes. XLA:CPU would round to the half type and back at each element.
        return cast(reduce(cast(x, torch.float32), dims, kind), dtype_of(x))
    build, identity = _REDUCERS[kind]
    dtype = dtype_of(x)
    kept = [size for d, size in enumerate(shape_of(x)) if d not in dims]
    op = hlo.ReduceOp(
        [tensor_type(kept, dtype)], [x], [scalar(identity(dtype), dtype)], sorted(dims)
    )
    region(op.regions[0], [tensor_type((), dtype)] * 2, build)
    return op.results[0]


def reduce_many(
    xs: Sequence[Value],
    identities: Sequence[Value],
    dims: Sequence[int],
    body: Callable[..., Sequence[Value]],
) -> list[Value]:
    """Reduce several tensors of one shape together: body(*accumulated, *next) -> accumulated."""
    kept = [size for d, size in enumerate(shape_of(xs[0])) if d not in dims]
    op = hlo.ReduceOp(
        [tensor_type(kept, dtype_of(x)) for x in xs], list(xs), list(identities), sorted(dims)
    )
    region(op.regions[0], [tensor_type((), dtype_of(x)) for x in [*xs, *xs]], body)
    return list(op.results)


def reduce_window(
    x: Value,
    kind: str,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> Value:
    """Reduce sliding windows (one entry a dimension); the padding holds the kind's identity."""
    build, identity = _REDUCERS[kind]
    dtype = dtype_of(x)
    dilation = list(dilation or [1] * rank_of(x))
    out = [
        (size + low + high - dil * (win - 1) - 1) // stride + 1
        for size, (low, high), dil, win, stride in zip(
            shape_of(x), padding, dilation, window, strides, strict=True
        )
    ]
    op = hlo.ReduceWindowOp(
        [tensor_type(out, dtype)],
        [x],
        [scalar(identity(dtype), dtype)],
        list(window),
        window_strides=list(strides),
        window_dilations=dilation,
        padding=ir.DenseIntElementsAttr.get(np.asarray(padding, dtype=np.int64).reshape(-1, 2)),
    )
    region(op.regions[0], [tensor_type((), dtype)] * 2, build)
    return op.results[0]


def dot_general(
    x: Value,
    y: Value,
    contract: tuple[Sequence[int], Sequence[int]],
    batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
    dtype: torch.dtype | None = None,
) -> Value:
    """Contract x with y; the result has the batch dims, x's free dims, then y's free dims.

    Half types accumulate in float32, as in torch's kernels, which is also XLA:CPU's fast form.
    """
    result = dtype or dtype_of(x)
    accumulate = get_computation_dtype(result)
    free_x = [d for d in range(rank_of(x)) if d not in contract[0] and d not in batch[0]]
    free_y = [d for d in range(rank_of(y)) if d not in contract[1] and d not in batch[1]]
    shape = [shape_of(x)[d] for d in [*batch[0], *free_x]] + [shape_of(y)[d] for d in free_y]
    numbers = hlo.DotDimensionNumbers.get(
        list(batch[0]), list(batch[1]), list(contract[0]), list(contract[1])
    )
    return cast(hlo.dot_general(tensor_type(shape, accumulate), x, y, numbers), result)


def while_loop(
    carried: Sequence[Value],
    condition: Callable[..., Value],
    body: Callable[..., Sequence[Value]],
) -> list[Value]:
    """While condition(*carried): carried = body(*carried)."""
    types = [x.type for x in carried]
    op = hlo.WhileOp(types, list(carried))
    region(op.regions[0], types, condition)
    region(op.regions[1], types, body)
    return list(op.results)


def sort(
    xs: Sequence[Value], dim: int, less: Callable[..., Value], *, stable: bool = True
) -> list[Value]:
    """Sort tensors together along dim; less(x0, y0, x1, y1, ...) says that x comes before y."""
    op = hlo.SortOp([x.type for x in xs], list(xs), dimension=dim, is_stable=stable)
    scalars = [tensor_type((), dtype_of(x)) for x in xs for _ in range(2)]
    region(op.regions[0], scalars, less)
    return list(op.results)


__all__ = [
    "Number",
    "Value",
    "add",
    "array",
    "bitcast",
    "broadcast_in_dim",
    "broadcast_shapes",
    "broadcast_to",
    "cast",
    "combiner",
    "compare",
    "concatenate",
    "divide",
    "dot_general",
    "dtype_of",
    "expand_dims",
    "full",
    "full_like",
    "highest",
    "identity",
    "iota",
    "is_nan",
    "is_value",
    "lowest",
    "normalize_dim",
    "normalize_dims",
    "numel_of",
    "overlay",
    "pad",
    "pad_dim",
    "rank_of",
    "reduce",
    "reduce_many",
    "reduce_window",
    "region",
    "reshape",
    "reverse",
    "scalar",
    "shape_of",
    "slice_",
    "slice_at",
    "slice_dim",
    "sort",
    "transpose",
    "update_slice",
    "where",
    "while_loop",
]
