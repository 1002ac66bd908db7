"""Read which devices take part in a collective together, from the three ways that HLO writes it."""

import math
import re

import numpy as np

Groups = tuple[tuple[int, ...], ...]

_LISTS = re.compile(r"replica_groups=\{(?P<groups>(?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(
    r"replica_groups=\[(?P<shape>[\d,]+)\]<=\[(?P<grid>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?"
)
_MESH = re.compile(
    r"replica_groups=mesh\[(?P<axes>[^\]]*)\](?:, device_ids=\((?P<ids>[^{}]*)\))? "
    r"\{(?P<used>[^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{(?P<pairs>(?:\{\d+,\d+\},?)*)\}")
_AXIS = re.compile(r"'(?P<name>[^']*)'(?::\((?P<before>\d+)\)(?P<size>\d+))?")


def groups_of(attributes: str, devices: int) -> Groups:
    """The groups of devices that a collective is for.

    HLO has lists, `{{0,1},{2,3}}`, where `{}` are all devices in one group; a grid of which each
    row is a group, `[2,4]<=[4,2]T(1,0)`; and axes of a mesh, `mesh['a'=2,'b'=4] {'b'}`, where an
    axis may be a part of one: `'b':(1)2` is the major half of four.

    Args:
        attributes: the text of the instruction behind its operands.
        devices: how many devices the program is for.

    Raises:
        ValueError: it has no groups in any of these ways.
    """
    if found := _MESH.search(attributes):
        return _of_mesh(found)
    if found := _IOTA.search(attributes):
        rows = _iota(found["grid"], found["order"]).reshape(_numbers(found["shape"]))
        return tuple(tuple(map(int, row)) for row in rows.reshape(-1, rows.shape[-1]))
    if found := _LISTS.search(attributes):
        lists = re.findall(r"\{([\d,]*)\}", found["groups"])
        return tuple(map(_numbers, lists)) or (tuple(range(devices)),)
    raise ValueError(f"these replica groups are of no known form: {attributes.strip():.300}")


def pairs_of(attributes: str) -> Groups:
    """The pairs of devices, from and to, of a collective-permute.

    Raises:
        ValueError: it has none.
    """
    found = _PAIRS.search(attributes)
    if found is None:
        raise ValueError(f"a collective-permute without pairs: {attributes.strip():.300}")
    return tuple(map(_numbers, re.findall(r"\{(\d+,\d+)\}", found["pairs"])))


def _of_mesh(found: re.Match[str]) -> Groups:
    """The devices that differ along some axes of a mesh, or along parts of them."""
    sizes = {name: int(n) for name, n in re.findall(r"'([^']*)'=(\d+)", found["axes"])}
    ids = _ids(found["ids"], math.prod(sizes.values()))
    used = [(a["name"], a["before"], a["size"]) for a in _AXIS.finditer(found["used"])]
    # Each axis becomes as many dimensions as the parts that are used, and those between, cut it.
    shape: list[int] = []
    inside: list[int] = []
    for axis, size in sizes.items():
        parts = [(int(before or 1), int(n or size)) for name, before, n in used if name == axis]
        done = 1
        for before, part in sorted(parts):
            inside.append(len(shape) + 1)
            shape += [before // done, part]
            done = before * part
        shape.append(size // done)
    grid = ids.reshape(shape)
    outside = [dim for dim in range(len(shape)) if dim not in inside]
    rows = grid.transpose(outside + inside).reshape(-1, math.prod(shape[dim] for dim in inside))
    return tuple(tuple(map(int, row)) for row in rows)


def _ids(text: str | None, count: int) -> np.ndarray:
    """The devices of a mesh in its order: 0, 1, ... unless a grid or a list says otherwise."""
    if text is None:
        return np.arange(count)
    permuted = re.fullmatch(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    return _iota(permuted[1], permuted[2]) if permuted else np.array(_numbers(text))


def _iota(grid: str, order: str | None) -> np.ndarray:
    shape = _numbers(grid)
    ids = np.arange(math.prod(shape)).reshape(shape)
    return (ids.transpose(_numbers(order)) if order else ids).flatten()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in text.split(",") if n)
