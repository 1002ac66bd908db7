"""Collectives: of the devices of a mesh inside manual regions, or of processes.

The groups are the indices of devices in the mesh, or the ranks of processes, one group of
`group_size` after another. The pass `gather_manual_regions` numbers the channels.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.errors import ShardingError
from xla_dynamo.lowerings.builders.build import (
    Value,
    cast,
    combiner,
    divide,
    dtype_of,
    expand_dims,
    full_like,
    reduce,
    region,
    reshape,
    shape_of,
    slice_dim,
    tensor_type,
)
from xla_dynamo.lowerings.table import Context, lowers

# By torch's names, which are PyTorch/XLA's too where it has them, `combiner`'s.
_REDUCTIONS = {
    "sum": "sum",
    "avg": "sum",
    "product": "prod",
    "min": "min",
    "max": "max",
    "band": "and",
    "bor": "or",
    "bxor": "xor",
}


def _groups(ctx: Context, groups: Sequence[int], size: int) -> ir.Attribute:
    return _table(_indices(ctx, groups), size)


def _table(indices: Any, size: int) -> ir.Attribute:
    rows = np.asarray(indices, dtype=np.int64).reshape(-1, size)
    return ir.DenseIntElementsAttr.get(np.ascontiguousarray(rows))


def _indices(ctx: Context, devices: Sequence[int]) -> list[int]:
    """Of processes the numbers among those that run the program; of devices of a mesh their own."""
    ranks = ctx.target.replicas
    return [ranks.index(rank) for rank in devices] if ranks else list(devices)


def _channel(ctx: Context) -> dict[str, Any]:
    """What an operation of devices has; without, XLA takes it for one of replicas: processes."""
    device_to_device = 1
    handle = hlo.ChannelHandle.get(1, device_to_device)
    return {} if ctx.target.replicas else {"channel_handle": handle}


def _by_id(ctx: Context) -> dict[str, Any]:
    return {} if ctx.target.replicas else {**_channel(ctx), "use_global_device_ids": True}


def _fold(op: Any, x: Value, reduce_op: str) -> None:
    """Fill the region of a collective that reduces."""
    scalars = [tensor_type((), dtype_of(x))] * 2
    region(op.regions[0], scalars, combiner(_REDUCTIONS[reduce_op]))


def _is_by_hand(x: Value, reduce_op: str) -> bool:
    """Whether XLA's collectives have no such reduction: of bits they have those of booleans."""
    of_bits = reduce_op in ("band", "bor", "bxor")
    return of_bits and (dtype_of(x) is not torch.bool or reduce_op == "bxor")


def _averaged(x: Value, reduce_op: str, count: int) -> Value:
    if reduce_op != "avg" or dtype_of(x) is torch.bool:
        return x
    number = full_like(x, count)
    if dtype_of(x).is_floating_point or dtype_of(x).is_complex:
        return divide(x, number)
    return hlo.divide(x, number)  # of integers, towards zero


def _check(x: Value, reduce_op: str) -> None:
    dtype = dtype_of(x)
    if reduce_op not in _REDUCTIONS:
        raise ShardingError(
            f"a collective reduces by one of {', '.join(_REDUCTIONS)}, not by {reduce_op!r}"
        )
    fractions = dtype.is_floating_point or dtype.is_complex
    if (reduce_op in ("band", "bor", "bxor") and fractions) or (
        reduce_op in ("min", "max") and dtype.is_complex
    ):
        raise ShardingError(f"there is no {reduce_op!r} of {dtype}")


@lowers("xla.all_reduce.default")
def all_reduce(ctx: Context, x: Value, reduce_op: str, groups: list[int], group_size: int) -> Value:
    _check(x, reduce_op)
    if group_size == 1:
        return x
    if _is_by_hand(x, reduce_op):
        stacked = (group_size, *shape_of(x))
        each = _gathered(ctx, expand_dims(x, 0), 0, stacked, groups, group_size)
        return reduce(each, [0], _REDUCTIONS[reduce_op])
    op = hlo.AllReduceOp(
        [x.type],
        [x],
        _groups(ctx, groups, group_size),
        **_by_id(ctx),
    )
    _fold(op, x, reduce_op)
    return _averaged(op.results[0], reduce_op, group_size)


@lowers("xla.all_gather.default")
def all_gather(ctx: Context, x: Value, dim: int, groups: list[int], group_size: int) -> Value:
    if group_size == 1:
        return x
    return _gathered(ctx, x, dim, tuple(ctx.out.shape), groups, group_size)


def _gathered(
    ctx: Context, x: Value, dim: int, shape: tuple[int, ...], groups: Sequence[int], group_size: int
) -> Value:
    op = hlo.AllGatherOp(
        [tensor_type(shape, dtype_of(x))],
        [x],
        dim,
        _groups(ctx, groups, group_size),
        **_by_id(ctx),
    )
    return op.results[0]


def _check_shards(x: Value, dim: int, group_size: int, name: str) -> None:
    if shape_of(x)[dim] % group_size:
        raise ShardingError(
            f"{name} splits dimension {dim} of a tensor of shape {shape_of(x)} among "
            f"{group_size} devices, and {shape_of(x)[dim]} is not divisible by {group_size}: pad it"
        )


@lowers("xla.reduce_scatter.default")
def reduce_scatter(
    ctx: Context, x: Value, reduce_op: str, dim: int, groups: list[int], group_size: int
) -> Value:
    _check(x, reduce_op)
    _check_shards(x, dim, group_size, "reduce_scatter")
    if group_size == 1:
        return x
    if _is_by_hand(x, reduce_op):
        shape = list(shape_of(x))
        shape[dim : dim + 1] = group_size, shape[dim] // group_size
        each = _exchanged(ctx, reshape(x, shape), dim, dim, groups, group_size)
        return reduce(each, [dim], _REDUCTIONS[reduce_op])
    op = hlo.ReduceScatterOp(
        tensor_type(tuple(ctx.out.shape), dtype_of(x)),
        x,
        dim,
        _groups(ctx, groups, group_size),
        **_by_id(ctx),
    )
    _fold(op, x, reduce_op)
    return _averaged(op.results[0], reduce_op, group_size)


@lowers("xla.all_to_all.default")
def all_to_all(
    ctx: Context, x: Value, split_dim: int, concat_dim: int, groups: list[int], group_size: int
) -> Value:
    _check_shards(x, split_dim, group_size, "all_to_all")
    if group_size == 1:
        return x
    return _exchanged(ctx, x, split_dim, concat_dim, groups, group_size)


def _exchanged(
    ctx: Context, x: Value, split_dim: int, concat_dim: int, groups: Sequence[int], group_size: int
) -> Value:
    shape = list(shape_of(x))
    shape[split_dim] //= group_size
    shape[concat_dim] *= group_size
    return hlo.AllToAllOp(
        [x],
        split_dim,
        concat_dim,
        group_size,
        _groups(ctx, groups, group_size),
        **_channel(ctx),
        results=[tensor_type(shape, dtype_of(x))],
    ).results[0]


@lowers("xla.collective_broadcast.default")
def collective_broadcast(
    ctx: Context, x: Value, src: int, groups: list[int], group_size: int
) -> Value:
    if not 0 <= src < group_size:
        raise ShardingError(
            f"a group has the devices 0 to {group_size - 1}, and {src} is to broadcast"
        )
    if group_size == 1:
        return x
    if ctx.target.is_cpu:  # XLA:CPU has no collective-broadcast
        stacked = (group_size, *shape_of(x))
        each = _gathered(ctx, expand_dims(x, 0), 0, stacked, groups, group_size)
        return reshape(slice_dim(each, 0, src, src + 1), shape_of(x))
    # The first of a group is the source.
    rows = np.asarray(_indices(ctx, groups), dtype=np.int64).reshape(-1, group_size)
    rows = np.concatenate([rows[:, src:], rows[:, :src]], axis=1)
    return hlo.CollectiveBroadcastOp(x, _table(rows, group_size), **_channel(ctx)).result


@lowers("xla.collective_permute.default")
def collective_permute(ctx: Context, x: Value, pairs: list[int]) -> Value:
    if ctx.target.partitions == 1 and not ctx.target.replicas:
        return cast(x if pairs else full_like(x, 0), dtype_of(x))
    table = _table(_indices(ctx, pairs), 2)
    return hlo.CollectivePermuteOp(x, table, **_channel(ctx)).result
