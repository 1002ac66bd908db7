"""The texts by which XLA writes shardings, as in `{devices=[2,4]<=[8]}`, written and read."""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime.mesh import Sharding

_TILED = re.compile(
    r"\{devices=\[(?P<counts>\d+(?:,\d+)*)\]"
    r"(?:(?P<ids>\d+(?:,\d+)*)|<=\[(?P<grid>\d+(?:,\d+)*)\](?:T\((?P<order>\d+(?:,\d+)*)\))?)"
    r"(?P<behind> last_tile_dim_replicate| last_tile_dims=\{replicated(?:, replicated)*\})?\}"
)


@dataclasses.dataclass(frozen=True, slots=True)
class TileAssignment:
    """Which devices have which shard of an array: XLA's tile assignment.

    Attributes:
        counts: into how many shards each dimension is split; () where all devices have the whole
            array, whatever its dimensions.
        devices: for each shard, by its numbers along the dimensions, the ids of its devices, the
            least first.
    """

    counts: tuple[int, ...]
    devices: Mapping[tuple[int, ...], tuple[int, ...]]


def tile_assignment(sharding: Sharding) -> TileAssignment:
    """The devices of a mesh that have each shard of a tensor."""
    tiling = sharding.tiling()
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for shard, device in zip(tiling.shards, sharding.mesh.ids, strict=True):
        found[shard] = tuple(sorted((*found.get(shard, ()), device)))  # as XLA has them
    return TileAssignment(tiling.counts, dict(sorted(found.items())))


def sharding_text(sharding: Sharding) -> str:
    """A sharding as XLA writes it, with the ids of the devices.

    >>> sharding_text(Sharding(Mesh(range(4), (2, 2), ("x", "y")), (("x",), ())))
    '{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}'
    """
    assignment = tile_assignment(sharding)
    if math.prod(assignment.counts) == 1:
        return "{replicated}"
    counts, together = [*assignment.counts], len(next(iter(assignment.devices.values())))
    repeats = " last_tile_dim_replicate" if together > 1 else ""
    counts += [together] if repeats else []
    ids = ",".join(str(i) for devices in assignment.devices.values() for i in devices)
    return f"{{devices=[{','.join(map(str, counts))}]{ids}{repeats}}}"


def read_sharding(text: str, everywhere: Sequence[int]) -> TileAssignment:
    """The tile assignment that a text of XLA's says.

    XLA has a parser of its own, which takes numbers that are missing for zeros.

    Args:
        text: the sharding of one array: replicated, on one device (`{maximal device=3}`), or
            split into shards, with the devices in a list or as a grid (`<=[4,2]T(1,0)`).
        everywhere: the ids of all devices, which have what is replicated.

    Raises:
        ShardingError: it is no such text, or does not name as many devices as there are shards.
    """
    text = text.strip()
    if text == "{replicated}":
        return TileAssignment((), {(): tuple(everywhere)})
    if one := re.fullmatch(r"\{maximal device=(\d+)\}", text):
        return TileAssignment((), {(): (int(one[1]),)})
    tiled = _TILED.fullmatch(text)
    if tiled is None:
        raise ShardingError(
            f"{text!r} is not the sharding of an array that devices have shards of, as "
            "'{devices=[2,4]0,1,2,3,4,5,6,7}', '{devices=[2,1,4]<=[8] last_tile_dim_replicate}' "
            "or '{replicated}'"
        )
    counts = _numbers(tiled["counts"])
    ids = np.array(_numbers(tiled["ids"])) if tiled["ids"] else _grid(tiled, text)
    if ids.size != math.prod(counts) or len(set(ids.flat)) != ids.size or not ids.size:
        raise ShardingError(
            f"{text!r} has {math.prod(counts)} places for devices, and names "
            f"{len(set(ids.flat))} different ones"
        )
    # Behind those of the array's dimensions come dimensions over which the shards repeat.
    behind = tiled["behind"].count("replicate") if tiled["behind"] else 0
    if behind >= len(counts):
        raise ShardingError(f"{text!r} repeats shards of an array without dimensions")
    own = counts[: len(counts) - behind]
    grid = ids.reshape(*own, -1)
    return TileAssignment(own, {shard: _in_order(grid[shard]) for shard in np.ndindex(*own)})


def _in_order(ids: np.ndarray) -> tuple[int, ...]:
    return tuple(sorted(map(int, ids)))


def _grid(tiled: re.Match[str], text: str) -> np.ndarray:
    """The ids 0, 1, ... in a grid, whose dimensions are permuted."""
    shape = _numbers(tiled["grid"])
    ids = np.arange(math.prod(shape)).reshape(shape)
    order = _numbers(tiled["order"]) if tiled["order"] else tuple(range(len(shape)))
    if sorted(order) != [*range(len(shape))]:
        raise ShardingError(f"{text!r} permutes {len(shape)} dimensions by {order}")
    return ids.transpose(order).flatten()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))
