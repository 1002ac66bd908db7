"""Lay the shards of a tensor out in rows and columns, with the devices of each, and colours."""

import colorsys
import dataclasses

import numpy as np

from xla_dynamo.runtime.hlo_shardings import TileAssignment


@dataclasses.dataclass(frozen=True)
class ShardGrid:
    """What is shown of a sharding.

    Attributes:
        devices: for each row and column, the ids of the devices that have this shard.
        caption: which dimensions are in rows and columns, where that is not plain.
    """

    devices: list[list[tuple[int, ...]]]
    caption: str = ""

    @property
    def size(self) -> int:
        """The number of shards."""
        return len(self.devices) * len(self.devices[0])


def grid_of(assignment: TileAssignment) -> ShardGrid:
    """The shards of a vector in a row, those of a matrix in rows and columns.

    Of an array with more dimensions only those are there that are sharded: the last one in columns,
    the others in rows.
    """
    counts, rank = assignment.counts, len(assignment.counts)
    shown = [dim for dim in range(rank) if rank <= 2 or counts[dim] > 1]
    alone_before_last = len(shown) == 1 and shown[0] != rank - 1
    rows, columns = (shown, []) if alone_before_last else (shown[:-1], shown[-1:])
    devices = [
        [
            assignment.devices[_shard(rank, rows, r, columns, c)]
            for c in _coordinates(counts, columns)
        ]
        for r in _coordinates(counts, rows)
    ]
    sides = {"rows": rows, "columns": columns}
    told = [f"{side}: {_named(dims)}" for side, dims in sides.items() if dims]
    return ShardGrid(devices, f"{'; '.join(told)}; of {rank}" if rank > 2 and told else "")


def _coordinates(counts: tuple[int, ...], dims: list[int]) -> list[tuple[int, ...]]:
    return list(np.ndindex(*(counts[dim] for dim in dims)))


def _shard(
    rank: int, rows: list[int], row: tuple[int, ...], columns: list[int], column: tuple[int, ...]
) -> tuple[int, ...]:
    """The numbers of a shard, from those of a row and a column."""
    at = dict(zip([*rows, *columns], [*row, *column], strict=True))
    return tuple(at.get(dim, 0) for dim in range(rank))


def _named(dims: list[int]) -> str:
    return f"dimension{'s' * (len(dims) > 1)} {', '.join(map(str, dims))}"


def color_of(number: int, count: int) -> str:
    """A colour for each of so many shards, as `#rrggbb`: neighbours differ in hue and in light."""
    hue, light = number / max(count, 1), 0.42 if number % 2 else 0.62
    red, green, blue = colorsys.hls_to_rgb(hue, light, 0.65)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"


def is_dark(color: str) -> bool:
    """Whether white can be read better on a colour than black (relative luminance, as in WCAG)."""
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] < 0.18
