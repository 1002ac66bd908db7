"""The collectives that Shardy has inserted, as StableHLO's among replicas."""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.lowerings.builders.values import Value, dtype_of, rank_of, shape_of
from xla_dynamo.lowerings.partitioning.shards import NotKnown, Partial, Shards
from xla_dynamo.lowerings.passes.permuted_operations import integer_array

# The reductions that collectives have, by their operations, in the words of `build.combiner`.
COMBINERS = {
    f"stablehlo.{name}": kind
    for name, kind in (
        ("add", "sum"),
        ("multiply", "prod"),
        ("maximum", "max"),
        ("minimum", "min"),
        ("and", "and"),
        ("or", "or"),
    )
}


def first_of(shards: Shards, names: Sequence[str], size: int) -> Value:
    """The index, i64[], of the first element of this device's shard, of a size, along axes."""
    return hlo.multiply(_position(shards, names), build.full((), size, torch.int64))


def _position(shards: Shards, names: Sequence[str]) -> Value:
    table = build.array(shards.places(names).tolist(), torch.int64)
    device = hlo.convert(tensor_type((), torch.int64), hlo.replica_id())
    one = hlo.dynamic_slice(table, [device], integer_array([1]))
    return build.reshape(one, ())


def shard_of(shards: Shards, x: Value, dims: Sequence[Sequence[str]]) -> Value:
    """This device's shard of a value, whose dimensions these axes shard further."""
    sizes = list(shards.local(shape_of(x), tuple(map(tuple, dims))))
    zero = build.full((), 0, torch.int64)
    starts = [
        first_of(shards, names, size) if names else zero
        for names, size in zip(dims, sizes, strict=True)
    ]
    return hlo.dynamic_slice(x, starts, integer_array(sizes))


def whole_of(shards: Shards, x: Value) -> Value:
    """The whole of a value."""
    for dim, names in enumerate(shards.axes(x)):
        x = _gathered(shards, x, dim, names)
    return x


def _gathered(shards: Shards, x: Value, dim: int, names: Sequence[str]) -> Value:
    if not names:
        return x
    shape = list(shape_of(x))
    shape[dim] *= shards.count(names)
    type_ = tensor_type(shape, dtype_of(x))
    return hlo.AllGatherOp([type_], [x], dim, _groups(shards, names)).results[0]


def _lists(attribute: ir.Attribute) -> list[tuple[str, ...]]:
    """The axes of each dimension in an attribute of Shardy's that has no class in Python.

    Raises:
        NotKnown: they are parts of axes.
    """
    text = str(attribute)
    if ":(" in text:
        raise NotKnown(text)
    return [tuple(re.findall(r'"([^"]+)"', one)) for one in re.findall(r"\{([^}]*)\}", text)]


def _groups(shards: Shards, names: Sequence[str]) -> ir.Attribute:
    return ir.DenseIntElementsAttr.get(np.ascontiguousarray(shards.groups(names)))


def _fold(op: hlo.AllReduceOp | hlo.ReduceScatterOp, x: Value, reduction: str) -> None:
    scalars = [tensor_type((), dtype_of(x))] * 2
    build.region(op.regions[0], scalars, build.combiner(COMBINERS[reduction]))


def _parts(shards: Shards, x: Value, names: Sequence[str]) -> Partial:
    """What the parts of a value are, which are to be reduced along axes."""
    partial = shards.partial.get(x)
    if partial is None or not set(names) <= partial.axes or partial.reduction not in COMBINERS:
        raise NotKnown(f"reduced along {names}: {partial}")
    return partial


def _note_rest(shards: Shards, result: Value, partial: Partial, names: Sequence[str]) -> None:
    if rest := partial.axes - set(names):
        shards.partial[result] = Partial(rest, partial.reduction)


def _all_reduce(shards: Shards, op: ir.Operation) -> Value:
    (x,) = op.operands
    (names,) = _lists(op.attributes["reduction_axes"])
    if x in shards.reduced:
        return x
    partial = _parts(shards, x, names)
    reduced = hlo.AllReduceOp([x.type], [x], _groups(shards, names))
    _fold(reduced, x, partial.reduction)
    _note_rest(shards, reduced.results[0], partial, names)
    return reduced.results[0]


def _all_gather(shards: Shards, op: ir.Operation) -> Value:
    (x,) = op.operands
    for dim, names in enumerate(_lists(op.attributes["gathering_axes"])):
        x = _gathered(shards, x, dim, names)
    return x


def _reduce_scatter(shards: Shards, op: ir.Operation) -> Value:
    (x,), dims = op.operands, _lists(op.attributes["reduce_scatter_axes"])
    if x in shards.reduced:
        return shard_of(shards, x, dims)
    names = [name for of_dim in dims for name in of_dim]
    partial = _parts(shards, x, names)
    for dim, of_dim in enumerate(dims):
        if of_dim:
            alone = tuple(of_dim if d == dim else () for d in range(rank_of(x)))
            type_ = shards.local_type(x, alone)
            scattered = hlo.ReduceScatterOp(type_, x, dim, _groups(shards, of_dim))
            _fold(scattered, x, partial.reduction)
            x = scattered.results[0]
    _note_rest(shards, x, partial, names)
    return x


def _all_slice(shards: Shards, op: ir.Operation) -> Value:
    return shard_of(shards, op.operands[0], _lists(op.attributes["slicing_axes"]))


def _all_to_all(shards: Shards, op: ir.Operation) -> Value:
    (x,), text = op.operands, str(op.attributes["params"])
    moves = re.findall(r"\{([^}]*)\}: (\d+)->(\d+)", text)
    if ":(" in text or not moves:
        raise NotKnown(text)
    for listed, source, target in moves:
        names, concat, split = re.findall(r'"([^"]+)"', listed), int(source), int(target)
        count, shape = shards.count(names), list(shape_of(x))
        if shape[split] % count:
            raise NotKnown(f"{shape} split into {count} at {split}")
        shape[split] //= count
        shape[concat] *= count
        groups, made = _groups(shards, names), tensor_type(shape, dtype_of(x))
        x = hlo.AllToAllOp([x], split, concat, count, groups, results=[made]).results[0]
    return x


def _collective_permute(shards: Shards, op: ir.Operation) -> Value:
    """Each device gets its shard from one that has it."""
    (x,) = op.operands
    now, wanted = shards.axes(x), shards.axes_of_results(op)[0]
    have: dict[tuple[int, ...], list[int]] = defaultdict(list)
    want: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for axes, found in ((now, have), (wanted, want)):
        of_dims = [shards.places(names) for names in axes]
        for device, shard in enumerate(zip(*of_dims, strict=True)):
            found[shard].append(device)
    pairs = [pair for s, t in want.items() for pair in zip(have[s], t, strict=True)]
    return hlo.collective_permute(x, ir.DenseIntElementsAttr.get(np.array(pairs, dtype=np.int64)))


COLLECTIVES: dict[str, Callable[[Shards, ir.Operation], Value]] = {
    f"sdy.{f.__name__[1:]}": f
    for f in (
        _all_gather,
        _all_reduce,
        _all_slice,
        _all_to_all,
        _collective_permute,
        _reduce_scatter,
    )
}
