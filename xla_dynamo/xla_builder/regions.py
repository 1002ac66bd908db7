"""Operations of XLA's builder that computations are given to, in StableHLO."""

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Value, dtype_of, rank_of, region, shape_of
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.xla_builder.computations import (
    Computation,
    inline,
    leaves,
    mlir_type,
    nested,
    plain_leaves,
    writing,
)
from xla_dynamo.xla_builder.shapes import torch_dtype_of
from xla_dynamo.xla_builder.table import operation


def fill(of: ir.Region, computation: Computation) -> None:
    """Let an operation's region be a computation."""
    types = [mlir_type(p) for shape in computation.parameters for p in plain_leaves(shape.shape)]
    region(of, types, lambda *values: inline(computation, writing.get(), values))


def _results(op: Any, computation: Computation) -> Any:
    return nested(computation.result.shape, iter(op.results))


@operation("Call")
def call(*operands: Any, computation: Computation) -> Any:
    """A computation's result for operands."""
    made = inline(computation, writing.get(), leaves(operands))
    return nested(computation.result.shape, iter(made))


@operation("Reduce")
def reduce(
    x: Value, init_value: Value, computation: Computation, dimensions: Sequence[int]
) -> Value:
    """Fold the elements along dimensions."""
    kept = [n for d, n in enumerate(shape_of(x)) if d not in dimensions]
    op = hlo.ReduceOp([tensor_type(kept, dtype_of(x))], [x], [init_value], sorted(dimensions))
    fill(op.regions[0], computation)
    return op.results[0]


@operation("ReduceAll")
def reduce_all(x: Value, init_value: Value, computation: Computation) -> Value:
    """Fold all elements."""
    return reduce(x, init_value, computation, range(rank_of(x)))


@operation("Map")
def map_(
    *operands: Value,
    computation: Computation,
    dimensions: Sequence[int],
    static_operands: Sequence[Any] = (),
) -> Value:
    """A computation of scalars at each element of operands of one shape."""
    (result,) = plain_leaves(computation.result.shape)
    made = tensor_type(shape_of(operands[0]), torch_dtype_of(result["type"]))
    op = hlo.MapOp(made, list(operands), list(dimensions))
    fill(op.regions[0], computation)
    return op.results[0]


@operation("Sort")
def sort(
    *operands: Value,
    comparator: Computation,
    dimension: int | None = None,
    is_stable: bool | None = None,
) -> Any:
    """Operands sorted together by a computation that says what comes first; a tuple of several."""
    last = rank_of(operands[0]) - 1
    dim = last if dimension is None or dimension < 0 else dimension
    op = hlo.SortOp(
        [x.type for x in operands], list(operands), dimension=dim, is_stable=bool(is_stable)
    )
    fill(op.regions[0], comparator)
    return op.results[0] if len(operands) == 1 else tuple(op.results)


@operation("Scatter")
def scatter(
    x: Value,
    scatter_indices: Value,
    updates: Value,
    computation: Computation,
    update_window_dims: Sequence[int] | None = None,
    inserted_window_dims: Sequence[int] | None = None,
    scatter_dims_to_operand_dims: Sequence[int] | None = None,
    index_vector_dim: int | None = None,
    indices_are_sorted: bool | None = None,
    unique_indices: bool | None = None,
) -> Value:
    """A copy with updates folded into slices that begin at computed indices."""
    numbers = hlo.ScatterDimensionNumbers.get(
        list(update_window_dims or ()),
        list(inserted_window_dims or ()),
        [],
        [],
        list(scatter_dims_to_operand_dims or ()),
        index_vector_dim or 0,
    )
    op = hlo.ScatterOp(
        [x.type],
        [x],
        scatter_indices,
        [updates],
        numbers,
        indices_are_sorted=bool(indices_are_sorted),
        unique_indices=bool(unique_indices),
    )
    fill(op.regions[0], computation)
    return op.results[0]


@operation("While")
def while_(init: Any, condition_computation: Computation, body_computation: Computation) -> Any:
    """Apply a body as long as a condition of the value is true."""
    values = leaves(init)
    op = hlo.WhileOp([x.type for x in values], values)
    fill(op.regions[0], condition_computation)
    fill(op.regions[1], body_computation)
    return _results(op, body_computation)


@operation("Conditional")
def conditional(
    condition: Value,
    true_operand: Any,
    false_operand: Any,
    true_computation: Computation,
    false_computation: Computation,
) -> Any:
    """The result of one of two computations, each of an operand of its own."""
    types = [mlir_type(p) for p in plain_leaves(true_computation.result.shape)]
    op = hlo.IfOp(types, condition)
    branches = ((true_operand, true_computation), (false_operand, false_computation))
    for of, (operand, computation) in zip(op.regions, branches, strict=True):
        values = leaves(operand)
        region(of, [], lambda c=computation, v=values: inline(c, writing.get(), v))
    return _results(op, true_computation)
