"""Numbers that are sizes: computed where the program runs."""

import math
from collections.abc import Callable, Sequence

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.extents import Extent, Refused, Symbols
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type


def computed_number(
    symbols: Symbols,
    value: Callable[[Extent, torch.dtype], ir.Value],
    numbers: Sequence[int | float],
    dtype: torch.dtype,
) -> ir.Value:
    """The scalar with these values in the variants: an extent, or the reciprocal of one.

    Args:
        symbols: the dynamic sizes.
        value: makes the value of an extent as a scalar of some dtype.
        numbers: the values.
        dtype: of the scalar.

    Raises:
        Refused: it is neither.
    """
    if all(float(n).is_integer() for n in numbers):
        extent = symbols.extent(tuple(int(n) for n in numbers))
        if extent is not None and dtype.is_floating_point:
            return _as(value(extent, torch.float64), dtype)
        if extent is not None and not dtype.is_complex and dtype is not torch.bool:
            return value(extent, dtype)
    elif dtype.is_floating_point and all(n and math.isfinite(n) for n in numbers):
        sizes = tuple(round(1 / n) for n in numbers)
        rounded = [torch.tensor(1 / n, dtype=dtype).item() for n in sizes if n]
        extent = symbols.extent(sizes)
        if extent is not None and rounded == numbers:
            return _as(
                hlo.divide(build.scalar(1, torch.float64), value(extent, torch.float64)), dtype
            )
    raise Refused(f"a number that is {numbers[0]} at the bounds depends on dynamic sizes")


def _as(double: ir.Value, dtype: torch.dtype) -> ir.Value:
    return double if dtype is torch.float64 else hlo.convert(tensor_type((), dtype), double)
