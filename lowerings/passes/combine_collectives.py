"""Combine collectives that do not wait for each other: one of many values costs what one does.

An exchange has a cost of its own, in XLA:CPU's Gloo about that of 2 MB. The values are flattened,
exchanged one behind the other, and cut apart again.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.build import concatenate, reshape, slice_dim, transpose
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.functions import main_of, values_read
from xla_dynamo.lowerings.builders.reductions import names_in_body
from xla_dynamo.lowerings.builders.values import Value, dtype_of, numel_of, shape_of
from xla_dynamo.lowerings.target import Target

# Bytes of a bucket, as DistributedDataParallel has them; larger values are exchanged alone.
BUCKET = 25 << 20


def combine_collectives(module: ir.Module, target: Target) -> None:
    """Let collectives of `main` that do not depend on each other be one for each bucket.

    Assumes that they are of replicas. Leaves those inside one process, which cost little.
    All-reduces, all-gathers and reduce-scatters with the same groups, reduction and dtype are
    combined, in their order. Operations that wait for more of them move behind those that wait for
    fewer.
    """
    if not target.over_processes:
        return
    block = main_of(module).entry_block
    operations = [view.operation for view in block.operations]
    levels, found = _levels(operations)
    buckets = [bucket for bucket in _buckets(found) if len(bucket) > 1]
    if not buckets:
        return
    *others, last = operations
    for op in sorted(others, key=lambda op: levels[op]):  # stable
        op.move_before(last)
    for bucket in buckets:
        # Where the first one is: all operands are of the levels before.
        with ir.InsertionPoint(bucket[0]), bucket[0].location:
            results = _COMBINED[bucket[0].name](bucket)
        for op, result in zip(bucket, results, strict=True):
            op.results[0].replace_all_uses_with(result)
            op.erase()


def _levels(
    operations: Sequence[ir.Operation],
) -> tuple[dict[ir.Operation, int], dict[Any, list[Any]]]:
    """How many collectives lie before each operation, one behind the other; and these by kind."""
    of_values: dict[Value, int] = {}
    levels: dict[ir.Operation, int] = {}
    found: dict[Any, list[Any]] = collections.defaultdict(list)
    for op in operations:
        level = max((of_values.get(v, 0) for v in values_read(op)), default=0)
        if op.name in _COMBINED and len(op.operands) == 1:
            level += 1
            found[level, *_kind(op)].append(op)
        levels[op] = level
        of_values.update(dict.fromkeys(op.results, level))
    return levels, found


def _kind(op: ir.Operation) -> tuple[str, ...]:
    body = "; ".join(names_in_body(op)) if len(op.regions) else ""
    element = str(op.operands[0].type.element_type)
    return op.name, str(op.attributes["replica_groups"]), body, element


def _buckets(found: dict[Any, list[Any]]) -> list[list[Any]]:
    """The operations of each kind, in their order, as many together as a bucket holds."""
    buckets: list[list[Any]] = []
    for operations in found.values():
        filled = math.inf
        for op in operations:
            larger = max(op.operands[0], op.results[0], key=numel_of)
            size = numel_of(larger) * dtype_of(larger).itemsize
            if filled + size > BUCKET:
                buckets.append([])
                filled = 0
            buckets[-1].append(op)
            filled += size
    return buckets


def _all_reduce(bucket: Sequence[Any]) -> list[Value]:
    flat = [reshape(op.operands[0], [numel_of(op.operands[0])]) for op in bucket]
    combined = _like(bucket[0], concatenate(flat, 0), sum(map(numel_of, flat)))
    return _parts(combined, [shape_of(op.results[0]) for op in bucket])


def _all_gather(bucket: Sequence[Any]) -> list[Value]:
    flat = [reshape(op.operands[0], [numel_of(op.operands[0])]) for op in bucket]
    size, count = sum(map(numel_of, flat)), _group_size(bucket[0])
    combined = _like(bucket[0], concatenate(flat, 0), count * size, "all_gather_dim")
    rows, first, results = reshape(combined, [count, size]), 0, []
    for op, x in zip(bucket, flat, strict=True):
        own = shape_of(op.operands[0])
        dim = ir.IntegerAttr(op.attributes["all_gather_dim"]).value
        parts = reshape(slice_dim(rows, 1, first, first + numel_of(x)), [count, *own])
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(own) + 1)]
        results.append(reshape(transpose(parts, order), shape_of(op.results[0])))
        first += numel_of(x)
    return results


def _reduce_scatter(bucket: Sequence[Any]) -> list[Value]:
    count, rows = _group_size(bucket[0]), []
    for op in bucket:
        (x,), own = op.operands, list(shape_of(op.results[0]))
        dim = ir.IntegerAttr(op.attributes["scatter_dimension"]).value
        parts = reshape(x, [*own[:dim], count, *own[dim:]])
        order = [dim, *range(dim), *range(dim + 1, len(own) + 1)]
        rows.append(reshape(transpose(parts, order), [count, math.prod(own)]))
    size = sum(numel_of(row) for row in rows) // count
    flat = reshape(concatenate(rows, 1), [count * size])
    combined = _like(bucket[0], flat, size, "scatter_dimension")
    return _parts(combined, [shape_of(op.results[0]) for op in bucket])


_COMBINED: dict[str, Callable[[Sequence[Any]], list[Value]]] = {
    f"stablehlo.{f.__name__[1:]}": f for f in (_all_gather, _all_reduce, _reduce_scatter)
}


def _group_size(op: Any) -> int:
    return ir.ShapedType(op.attributes["replica_groups"].type).shape[1]


def _like(op: Any, x: Value, size: int, dim: str = "") -> Value:
    """The result, of one dimension, of a collective like another one, along the first dimension."""
    combined = op.clone()
    combined.operands[0] = x
    if dim:
        combined.attributes[dim] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
    (result,) = combined.results
    result.set_type(tensor_type([size], dtype_of(x)))
    return result


def _parts(x: Value, shapes: Sequence[Sequence[int]]) -> list[Value]:
    """The values of these shapes that lie one behind the other."""
    found, first = [], 0
    for shape in shapes:
        size = math.prod(shape)
        found.append(reshape(slice_dim(x, 0, first, first + size), shape))
        first += size
    return found
