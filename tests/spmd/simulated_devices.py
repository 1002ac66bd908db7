"""What each device of a mesh has, as a list: collectives by NumPy and torch in one process."""

import numpy as np
import torch

REDUCTIONS = {
    "sum": np.add,
    "avg": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def shards_of(x, mesh, spec):
    """Each device's shard of a tensor, or of a NumPy array."""
    return [
        x[tuple(_part(x.shape[dim], place, mesh, entry) for dim, entry in enumerate(spec))]
        for place in np.ndindex(*mesh.mesh_shape)
    ]


def whole_of(shards, mesh, spec):
    """The tensor that shards make; of devices that have the same shard the mean counts."""
    counts = [int(np.prod([mesh.shape()[n] for n in _names(entry)])) for entry in spec]
    shape = [n * count for n, count in zip(shards[0].shape, counts, strict=True)]
    repeats = mesh.size() // int(np.prod(counts))
    total = torch.zeros(shape, dtype=shards[0].dtype)
    for shard, place in zip(shards, np.ndindex(*mesh.mesh_shape), strict=True):
        where = tuple(_part(shape[dim], place, mesh, e) for dim, e in enumerate(spec))
        put = torch.zeros(shape, dtype=shard.dtype)
        total = total + put.index_put(_grid(where), shard / repeats)
    return total


def _grid(where):
    if not where:
        return ()
    return torch.meshgrid(*(torch.arange(s.start, s.stop) for s in where), indexing="ij")


def _names(entry):
    return (entry,) if isinstance(entry, str) else tuple(entry or ())


def _part(size, place, mesh, entry):
    """The part of a dimension that the device at a place has."""
    at, number, count = dict(zip(mesh.axis_names, place, strict=True)), 0, 1
    for name in _names(entry):
        number = number * mesh.shape()[name] + at[name]
        count *= mesh.shape()[name]
    return slice(size // count * number, size // count * (number + 1))


def groups_of(mesh, axis=None, groups=None):
    """The places of each group's devices."""
    if groups is not None:
        return [[mesh.device_ids.index(device) for device in group] for group in groups]
    axes = mesh.axis_names if axis is None else _names(axis)
    numbers = np.arange(mesh.size()).reshape(mesh.mesh_shape)
    numbers = np.moveaxis(numbers, [mesh.axis_names.index(n) for n in axes], range(len(axes)))
    return numbers.reshape(int(np.prod([mesh.shape()[n] for n in axes])), -1).T.tolist()


# --- collectives, on lists of shards ----------------------------------------------------------


def all_reduce(shards, groups, kind="sum"):
    def of_group(given):
        result = _reduced(given, kind)
        return [result] * len(given)

    return _by_group(shards, groups, of_group)


def _reduced(given, kind):
    if isinstance(given[0], np.ndarray):
        total = REDUCTIONS[kind].reduce(given, dtype=given[0].dtype)
        if kind == "avg" and total.dtype.kind in "iu":  # towards zero
            total = np.sign(total) * (np.abs(total) // total.dtype.type(len(given)))
        elif kind == "avg":
            total = total / len(given)
        return total
    stacked = torch.stack(given)
    if kind in ("min", "max"):
        return getattr(torch, f"a{kind}")(stacked, 0)
    return getattr(stacked, {"avg": "mean", "product": "prod"}.get(kind, kind))(0)


def all_gather(shards, groups, dim=0):
    return _by_group(shards, groups, lambda given: [_joined(given, dim)] * len(given))


def reduce_scatter(shards, groups, kind="sum", dim=0):
    return _by_group(shards, groups, lambda given: _split(_reduced(given, kind), len(given), dim))


def all_to_all(shards, groups, split=0, concat=0):
    def of_group(given):
        parts = [_split(x, len(given), split) for x in given]
        return [_joined([p[i] for p in parts], concat) for i in range(len(given))]

    return _by_group(shards, groups, of_group)


def collective_broadcast(shards, groups, src=0):
    return _by_group(shards, groups, lambda given: [given[src]] * len(given))


def collective_permute(shards, groups, pairs):
    def of_group(given):
        made = [x * 0 for x in given]
        for source, target in pairs:
            made[target] = given[source]
        return made

    return _by_group(shards, groups, of_group)


def _by_group(shards, groups, of_group):
    made = [None] * len(shards)
    for group in groups:
        for place, result in zip(group, of_group([shards[p] for p in group]), strict=True):
            made[place] = result
    return made


def _joined(xs, dim):
    return np.concatenate(xs, dim) if isinstance(xs[0], np.ndarray) else torch.cat(xs, dim)


def _split(x, count, dim):
    if isinstance(x, np.ndarray):
        return np.split(x, count, dim)
    return list(x.chunk(count, dim))
