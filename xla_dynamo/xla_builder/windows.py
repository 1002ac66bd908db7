"""Windows of XLA's builder: their padding, how often they fit, and reductions in them."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value, dtype_of, shape_of
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.xla_builder.computations import Computation
from xla_dynamo.xla_builder.regions import fill
from xla_dynamo.xla_builder.table import operation

Padding: TypeAlias = str | Sequence[Sequence[int]]


def paddings_of(
    padding: Padding, sizes: Sequence[int], window: Sequence[int], strides: Sequence[int]
) -> list[tuple[int, int]]:
    """The padding, low and high, of each dimension.

    Raises:
        ValueError: it is neither "valid" nor "same" nor as many pairs.
    """
    if padding == "valid":
        return [(0, 0)] * len(sizes)
    if padding == "same":
        missing = [
            max((-(-size // stride) - 1) * stride + taken - size, 0)
            for size, taken, stride in zip(sizes, window, strides, strict=True)
        ]
        return [(n // 2, n - n // 2) for n in missing]
    if isinstance(padding, str) or len(padding) != len(sizes):
        raise ValueError(f'padding is {padding!r}, and none of "valid", "same", {len(sizes)} pairs')
    return [(low, high) for low, high in padding]


def window_sizes(
    sizes: Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] | None = None,
    window_dilation: Sequence[int] | None = None,
) -> list[int]:
    """How often windows fit into each dimension."""
    ones = [1] * len(sizes)
    made = []
    for size, taken, stride, (low, high), base, dilation in zip(
        sizes, window, strides, padding, base_dilation or ones, window_dilation or ones, strict=True
    ):
        whole = (size - 1) * base + 1 if size else 0
        free = whole + low + high - ((taken - 1) * dilation + 1)
        made.append(max(free // stride + 1, 0) if free >= 0 else 0)
    return made


def _attribute(padding: Sequence[tuple[int, int]]) -> ir.DenseIntElementsAttr:
    return ir.DenseIntElementsAttr.get(np.asarray(padding, dtype=np.int64).reshape(-1, 2))


@operation("ReduceWindow")
def reduce_window(
    x: Value,
    init_value: Value,
    computation: Computation,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Padding = "valid",
) -> Value:
    """Fold the elements of each window."""
    around = paddings_of(padding, shape_of(x), window_dimensions, window_strides)
    made = window_sizes(shape_of(x), window_dimensions, window_strides, around)
    op = hlo.ReduceWindowOp(
        [tensor_type(made, dtype_of(x))],
        [x],
        [init_value],
        list(window_dimensions),
        window_strides=list(window_strides),
        padding=_attribute(around),
    )
    fill(op.regions[0], computation)
    return op.results[0]


@operation("MaxPool")
def max_pool(
    x: Value,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    batch_dimension: int = 0,
    feature_dimension: int = 1,
    spatial_dimensions: Sequence[int] = (),
    padding: str = "valid",
) -> Value:
    """The greatest element of each window; sizes and strides are those of all dimensions."""
    around = paddings_of(padding, shape_of(x), kernel_size, stride)
    return build.reduce_window(x, "max", kernel_size, stride, around)


def _select_and_scatter(
    x: Value,
    source: Value,
    init_value: Value,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    select_computation: Computation,
    scatter_computation: Computation,
    padding: Padding = "valid",
) -> Value:
    """Add each element of a source to that element of its window which is selected."""
    around = paddings_of(padding, shape_of(x), window_dimensions, window_strides)
    op = hlo.SelectAndScatterOp(
        x.type,
        x,
        source,
        init_value,
        window_dimensions=list(window_dimensions),
        window_strides=list(window_strides),
        padding=_attribute(around),
    )
    fill(op.regions[0], select_computation)
    fill(op.regions[1], scatter_computation)
    return op.results[0]


operation("SelectAndScatter")(_select_and_scatter)
operation("SelectAndScatterWithGeneralPadding")(_select_and_scatter)
