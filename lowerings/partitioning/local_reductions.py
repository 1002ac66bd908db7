"""Operations that sum, on shards: each function returns the axes of the results.

Over a dimension that is sharded each device computes a part.
"""

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.reductions import is_neutral, reduction_of
from xla_dynamo.lowerings.builders.values import rank_of
from xla_dynamo.lowerings.partitioning.local_collectives import COMBINERS
from xla_dynamo.lowerings.partitioning.shards import Axes, Shards, require
from xla_dynamo.lowerings.passes.permuted_operations import integers


def _dot_general(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    numbers = hlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    x, y = map(shards.axes, op.operands)
    stacks = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    inner = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    for left, right in zip((*stacks[0], *inner[0]), (*stacks[1], *inner[1]), strict=True):
        require(x[left] == y[right], op)
    made = [x[d] for d in stacks[0]]
    for axes, stack, contracted in zip((x, y), stacks, inner, strict=True):
        made += [names for d, names in enumerate(axes) if d not in (*stack, *contracted)]
    shards.note_parts(op.results, [x[d] for d in inner[0]], "stablehlo.add")
    return [tuple(made)]


def _reduce(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    operands = list(op.operands)
    inputs, inits = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    dims = integers(op, "dimensions")
    axes = shards.axes(inputs[0])
    require(all(shards.axes(x) == axes for x in inputs), op)
    summed = [axes[d] for d in dims]
    if any(summed):
        reduction = reduction_of(op)
        require(reduction in COMBINERS, op)
        require(len(inputs) == 1 and is_neutral(inits[0], reduction), op)
        shards.note_parts(op.results, summed, reduction)
    return [tuple(n for d, n in enumerate(axes) if d not in dims)] * len(inputs)


def _convolution(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    x, weight = map(shards.axes, op.operands)
    numbers = hlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    require(not any(x[d] for d in numbers.input_spatial_dimensions), op)
    require(not any(weight[d] for d in numbers.kernel_spatial_dimensions), op)
    groups = [
        ir.IntegerAttr(op.attributes[f"{name}_group_count"]).value for name in ("feature", "batch")
    ]
    batch, inner = x[numbers.input_batch_dimension], x[numbers.input_feature_dimension]
    outer = weight[numbers.kernel_output_feature_dimension]
    require(inner == weight[numbers.kernel_input_feature_dimension], op)
    require(groups == [1, 1] or not (inner or outer or (batch and groups[1] > 1)), op)
    shards.note_parts(op.results, [inner], "stablehlo.add")
    made: list[tuple[str, ...]] = [()] * rank_of(op.results[0])
    made[numbers.output_batch_dimension] = batch
    made[numbers.output_feature_dimension] = outer
    return [tuple(made)]


def _reduce_window(shards: Shards, op: Any, results: Sequence[Axes]) -> list[Axes]:
    """Dimensions whose windows are single elements may be sharded."""
    x = op.operands[0]
    axes = shards.axes(x)
    inputs = list(op.operands)[: len(op.operands) // 2]
    if op.name.endswith("select_and_scatter"):
        inputs = list(op.operands)[:2]
    require(all(shards.axes(each) == axes for each in inputs), op)
    for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations"):
        if name in op.attributes:
            amounts = integers(op, name)
            require(all(amounts[d] == 1 for d in shards.sharded_dims(x)), op)
    if "padding" in op.attributes:
        flat = list(ir.DenseIntElementsAttr(op.attributes["padding"]))
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        require(all(pairs[d] == (0, 0) for d in shards.sharded_dims(x)), op)
    return [axes] * len(op.results)


REDUCTIONS = {
    "convolution": _convolution,
    "dot_general": _dot_general,
    "reduce": _reduce,
    "reduce_window": _reduce_window,
    "select_and_scatter": _reduce_window,
}
