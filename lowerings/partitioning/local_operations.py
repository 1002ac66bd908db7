"""Operations on shards: each gets the types of its shards, if these compute those of the results.

What Shardy propagates is checked here, operation by operation. A sum over a dimension that is
sharded leaves a part of it on each device, and nothing but a collective may read that.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE, named
from xla_dynamo.lowerings.builders.reductions import reduction_of
from xla_dynamo.lowerings.builders.shardings import SHARDING
from xla_dynamo.lowerings.builders.values import Value, rank_of
from xla_dynamo.lowerings.partitioning.elementwise_calls import is_elementwise_call
from xla_dynamo.lowerings.partitioning.local_collectives import (
    COLLECTIVES,
    first_of,
    shard_of,
    whole_of,
)
from xla_dynamo.lowerings.partitioning.local_indexing import INDEXING, rows_here, split_table
from xla_dynamo.lowerings.partitioning.local_reductions import REDUCTIONS
from xla_dynamo.lowerings.partitioning.local_views import VIEWS
from xla_dynamo.lowerings.partitioning.shards import Axes, NotKnown, Shards, require

Rule = Callable[[Shards, Any, Sequence[Axes]], Sequence[Axes]]
_INDEX = torch.int64
_NO_COLLECTIVE = "stablehlo.xor"
_RULES: dict[str, Rule] = {**INDEXING, **REDUCTIONS, **VIEWS}
# Elementwise ones beside those that passes decide by.
_ELEMENTWISE = ELEMENTWISE | named(
    "bitcast_convert complex count_leading_zeros imag popcnt real reduce_precision "
    "shift_left shift_right_arithmetic shift_right_logical"
)
# What each device may gather the whole operands of, where their shards do not compute those of the
# results, in a program that XLA's partitioner may fail at.
_GATHERED = named(
    "concatenate dynamic_slice dynamic_update_slice fft pad reduce reduce_window reverse "
    "select_and_scatter slice sort"
)


def convert(shards: Shards, op: ir.Operation) -> None:
    """Let an operation of a block, whose operands are shards already, compute shards.

    Raises:
        NotKnown: they do not compute those of the results, or nobody knows.
    """
    axes_of_results = shards.axes_of_results(op)
    is_sharded = any(map(shards.is_sharded, op.operands)) or any(map(any, axes_of_results))
    make = COLLECTIVES.get(op.name)
    require(make is not None or not any(value in shards.partial for value in op.operands), op)
    if make is None and is_sharded:
        make = _anew(shards, op)
    if make is not None or op.name == "sdy.constant":
        (axes,) = axes_of_results
        _replace(shards, op, (make or _constant)(shards, op), axes)
        return
    require(not op.name.startswith("sdy."), op)
    if is_sharded and not any(map(shards.is_sharded, op.operands)) and _rule(op) is None:
        _compute_whole(shards, op, axes_of_results)
    elif is_sharded:
        try:
            _check(shards, op, axes_of_results)
        except NotKnown:
            if not _may_gather(shards, op):
                raise
            for number, x in enumerate(op.operands):
                op.operands[number] = whole_of(shards, x)
            _compute_whole(shards, op, axes_of_results)
        else:
            for result, axes in zip(op.results, axes_of_results, strict=True):
                shards.shard(result, axes)
    if SHARDING in op.attributes:
        del op.attributes[SHARDING]


def _anew(shards: Shards, op: ir.Operation) -> Callable[[Shards, ir.Operation], Value] | None:
    """What writes the shard of an operation's result by other operations; None for the same one."""
    if op.name == "stablehlo.gather" and split_table(shards, op) is not None:
        return rows_here
    return {"stablehlo.constant": _constant, "stablehlo.iota": _iota}.get(op.name)


def _replace(shards: Shards, op: ir.Operation, new: Value, axes: Axes) -> None:
    (result,) = op.results
    whole = shards.shape(result)
    require(shards.local(whole, axes) == build.shape_of(new), op)
    shards.note(new, axes, whole)
    result.replace_all_uses_with(new)
    op.erase()


def _rule(op: ir.Operation) -> Rule | None:
    name = op.name
    if name in _ELEMENTWISE or is_elementwise_call(op):
        return _elementwise
    return _RULES.get(name.removeprefix("stablehlo."))


def _may_gather(shards: Shards, op: ir.Operation) -> bool:
    if op.name == "stablehlo.fft" or (
        op.name == "stablehlo.reduce" and reduction_of(op) == _NO_COLLECTIVE
    ):
        return True  # a program of XLA's partitioner fails when it is compiled or run
    return shards.gathers and op.name in _GATHERED


def _compute_whole(shards: Shards, op: ir.Operation, axes_of_results: Sequence[Axes]) -> None:
    """Let each device compute what it needs a shard of, such as random numbers, and take that."""
    following = list(op.block.operations)
    behind = following[[view.operation for view in following].index(op) + 1]
    for result, axes in zip(op.results, axes_of_results, strict=True):
        shards.reduced.add(result)
        if any(axes):
            uses = [(use.owner, use.operand_number) for use in result.uses]
            with ir.InsertionPoint(behind):
                shard = shard_of(shards, result, axes)
            shards.note(shard, axes, build.shape_of(result))
            shards.reduced.add(shard)
            for user, number in uses:
                user.operands[number] = shard


def _check(shards: Shards, op: ir.Operation, axes_of_results: Sequence[Axes]) -> None:
    """Check that shards of the operands compute shards of the results, then adapt attributes."""
    rule = _rule(op)
    if rule is None:
        raise NotKnown(op.name)
    made = list(rule(shards, op, axes_of_results))
    if made != list(axes_of_results):
        raise NotKnown(f"{op.name} makes {made}, and not {axes_of_results}")


def _elementwise(shards: Shards, op: Any, results: Sequence[Axes]) -> Sequence[Axes]:
    whole = shards.shape(op.results[0])
    for x in op.operands:  # scalars of `select` and `clamp` are whole
        is_alike = shards.axes(x) == results[0] and shards.shape(x) == whole
        require(rank_of(x) == 0 or is_alike, op)
    return results


def _constant(shards: Shards, op: ir.Operation) -> Value:
    (axes,), attribute = shards.axes_of_results(op), ir.DenseElementsAttr(op.attributes["value"])
    if not any(axes) or not attribute.is_splat:
        value = hlo.constant(attribute)
        return shard_of(shards, value, axes) if any(axes) else value
    type_ = shards.local_type(op.results[0], axes)
    return hlo.constant(ir.DenseElementsAttr.get_splat(type_, attribute.get_splat_value()))


def _iota(shards: Shards, op: ir.Operation) -> Value:
    (axes,), dim = shards.axes_of_results(op), ir.IntegerAttr(op.attributes["iota_dimension"]).value
    type_ = shards.local_type(op.results[0], axes)
    if not axes[dim]:
        return hlo.iota(type_, dim)
    first, numbers = first_of(shards, axes[dim], type_.shape[dim]), tensor_type(type_.shape, _INDEX)
    return hlo.convert(
        type_, hlo.add(hlo.iota(numbers, dim), build.broadcast_to(first, type_.shape))
    )
