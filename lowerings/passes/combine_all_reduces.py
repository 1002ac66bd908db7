"""Combine all-reduces that do not wait for each other: one of many values costs what one does.

An exchange has a cost of its own, in XLA:CPU's Gloo about that of 2 MB. The values are flattened,
exchanged one behind the other, and cut apart again.
"""

import collections
import math
from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.build import concatenate, reshape, slice_dim
from xla_dynamo.lowerings.builders.functions import main_of, values_read
from xla_dynamo.lowerings.builders.values import Value, dtype_of, numel_of, shape_of
from xla_dynamo.lowerings.target import Target

# Bytes of a bucket, as DistributedDataParallel has them; larger values are exchanged alone.
BUCKET = 25 << 20


def combine_all_reduces(module: ir.Module, target: Target) -> None:
    """Let all-reduces of `main` that do not depend on each other be one for each bucket.

    Assumes that collectives are of processes. Those with the same groups, reduction and dtype are
    combined, in their order. Operations that wait for more all-reduces move behind those that wait
    for fewer.
    """
    if not target.replicas:
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
        _combine(bucket)


def _levels(
    operations: Sequence[ir.Operation],
) -> tuple[dict[ir.Operation, int], dict[Any, list[Any]]]:
    """How many all-reduces lie before each operation, one behind the other; and these by kind."""
    of_values: dict[Value, int] = {}
    levels: dict[ir.Operation, int] = {}
    found: dict[Any, list[Any]] = collections.defaultdict(list)
    for op in operations:
        level = max((of_values.get(v, 0) for v in values_read(op)), default=0)
        if op.name == "stablehlo.all_reduce" and len(op.operands) == 1:
            level += 1
            found[level, _kind(op)].append(op)
        levels[op] = level
        of_values.update(dict.fromkeys(op.results, level))
    return levels, found


def _kind(op: ir.Operation) -> tuple[str, str, str]:
    body = "; ".join(inner.operation.name for inner in op.regions[0].blocks[0].operations)
    element = str(op.operands[0].type.element_type)
    return str(op.attributes["replica_groups"]), body, element


def _buckets(found: dict[Any, list[Any]]) -> list[list[Any]]:
    """The operations of each kind, in their order, as many together as a bucket holds."""
    buckets: list[list[Any]] = []
    for operations in found.values():
        filled = BUCKET
        for op in operations:
            x = op.operands[0]
            size = numel_of(x) * dtype_of(x).itemsize
            if filled + size > BUCKET:
                buckets.append([])
                filled = 0
            buckets[-1].append(op)
            filled += size
    return buckets


def _combine(bucket: Sequence[Any]) -> None:
    """Write one all-reduce where the first one is: all operands are of the levels before."""
    first_op, *_ = bucket
    with ir.InsertionPoint(first_op), first_op.location:
        values = [op.operands[0] for op in bucket]
        flat = concatenate([reshape(x, [numel_of(x)]) for x in values], 0)
        combined = first_op.clone()
        combined.operands[0] = flat
        (result,) = combined.results
        result.set_type(flat.type)
        first = 0
        for op, x in zip(bucket, values, strict=True):
            part = slice_dim(result, 0, first, first + numel_of(x))
            op.results[0].replace_all_uses_with(reshape(part, shape_of(x)))
            first += math.prod(shape_of(x))
    for op in bucket:
        op.erase()
