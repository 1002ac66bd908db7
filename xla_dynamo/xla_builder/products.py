"""Products, convolutions and solutions of XLA's builder in StableHLO."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Value, dtype_of, rank_of, shape_of
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.xla_builder.table import operation
from xla_dynamo.xla_builder.windows import Padding, paddings_of, window_sizes

_PRECISIONS = {"default": "DEFAULT", "high": "HIGH", "highest": "HIGHEST"}


def precision(config: str | None) -> ir.ArrayAttr | None:
    """The attribute for a precision; None leaves it to `torch.set_float32_matmul_precision`.

    Raises:
        ValueError: there is no such precision.
    """
    if config is None:
        return None
    if config not in _PRECISIONS:
        raise ValueError(f"precision_config is {config!r}, and none of {', '.join(_PRECISIONS)}")
    return ir.ArrayAttr.get([hlo.PrecisionAttr.get(_PRECISIONS[config])] * 2)


@operation("Dot")
def dot(x: Value, y: Value, precision_config: str | None = None) -> Value:
    """The product of two values of one or two dimensions: matrices, vectors."""
    return dot_general(x, y, (((rank_of(x) - 1,), (0,)), ((), ())), precision_config)


@operation("DotGeneral")
def dot_general(
    x: Value, y: Value, dimension_numbers: Any, precision_config: str | None = None
) -> Value:
    """A contraction, its dimension numbers as JAX has them: contracted, then batch, of x and y."""
    contracted, batch = (tuple(map(list, pair)) for pair in dimension_numbers)
    numbers = hlo.DotDimensionNumbers.get(batch[0], batch[1], contracted[0], contracted[1])
    free = [n for d, n in enumerate(shape_of(x)) if d not in (*contracted[0], *batch[0])]
    free += [n for d, n in enumerate(shape_of(y)) if d not in (*contracted[1], *batch[1])]
    shape = [shape_of(x)[d] for d in batch[0]] + free
    type_ = tensor_type(shape, dtype_of(x))
    return hlo.dot_general(type_, x, y, numbers, precision_config=precision(precision_config))


@operation("TriangularSolve")
def triangular_solve(
    a: Value,
    b: Value,
    left_side: bool | None = None,
    lower: bool | None = None,
    unit_diagonal: bool | None = None,
    transpose_a: bool | None = None,
) -> Value:
    """The solution x of a x = b, or of x a = b, where a is triangular."""
    is_left = True if left_side is None else left_side
    kind = hlo.TransposeAttr.get("TRANSPOSE" if transpose_a else "NO_TRANSPOSE")
    return hlo.triangular_solve(a, b, is_left, bool(lower), bool(unit_diagonal), kind)


# --- convolutions -------------------------------------------------------------------------------


def _convolution(
    x: Value,
    kernel: Value,
    window_strides: Sequence[int],
    padding: Padding = "valid",
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision_config: str | None = None,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    **numbers: Any,
) -> Value:
    """A convolution; without dimension numbers batch, features, and then spatial dimensions.

    Kernels have output features, input features, and then spatial dimensions.
    """
    spatial = list(range(2, rank_of(x)))
    given: dict[str, Any] = {
        "input_batch_dimension": 0,
        "input_feature_dimension": 1,
        "input_spatial_dimensions": spatial,
        "kernel_input_feature_dimension": 1,
        "kernel_output_feature_dimension": 0,
        "kernel_spatial_dimensions": spatial,
        "output_batch_dimension": 0,
        "output_feature_dimension": 1,
        "output_spatial_dimensions": spatial,
    }
    given |= {n: list(v) if isinstance(v, tuple | list) else v for n, v in numbers.items()}
    sizes = [shape_of(x)[d] for d in given["input_spatial_dimensions"]]
    window = [shape_of(kernel)[d] for d in given["kernel_spatial_dimensions"]]
    lhs = list(lhs_dilation or [1] * len(sizes))
    rhs = list(rhs_dilation or [1] * len(sizes))
    around = paddings_of(padding, sizes, window, window_strides)
    made = window_sizes(sizes, window, window_strides, around, lhs, rhs)
    shape = [0] * rank_of(x)
    batch = shape_of(x)[given["input_batch_dimension"]]
    shape[given["output_batch_dimension"]] = batch // batch_group_count
    features = shape_of(kernel)[given["kernel_output_feature_dimension"]]
    shape[given["output_feature_dimension"]] = features
    for dim, size in zip(given["output_spatial_dimensions"], made, strict=True):
        shape[dim] = size
    return hlo.convolution(
        tensor_type(shape, dtype_of(x)),
        x,
        kernel,
        hlo.ConvDimensionNumbers.get(**given),
        feature_group_count,
        batch_group_count,
        window_strides=list(window_strides),
        padding=ir.DenseIntElementsAttr.get(np.asarray(around, dtype=np.int64).reshape(-1, 2)),
        lhs_dilation=lhs,
        rhs_dilation=rhs,
        precision_config=precision(precision_config),
    )


for _name in (
    "Conv",
    "ConvGeneral",
    "ConvGeneralDilated",
    "ConvWithGeneralDimensions",
    "ConvWithGeneralPadding",
):
    operation(_name)(_convolution)
