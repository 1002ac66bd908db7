"""Show which devices have which part of a tensor: as a table of the terminal, and as a picture."""

import os

import torch
from rich.box import SQUARE
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from xla_dynamo.errors import ShardingError
from xla_dynamo.runtime import topology
from xla_dynamo.runtime.hlo_shardings import (
    TileAssignment,
    read_sharding,
    sharding_text,
    tile_assignment,
)
from xla_dynamo.spmd.marking import sharding_of
from xla_dynamo.spmd.pictures import draw
from xla_dynamo.spmd.shard_grid import ShardGrid, color_of, grid_of, is_dark

_HEIGHT = 3  # lines of a terminal for a shard
_ASPECT = 2.5  # columns of a terminal that are as wide as one of its lines is high


def visualize_sharding(
    sharding: str,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    picture: str | os.PathLike[str] | None = None,
) -> Table:
    """Print a table with a cell for each shard of a tensor, which names the shard's devices.

    A vector is a row of shards, a matrix a grid. Of a tensor with more dimensions, those that are
    sharded are shown, the last of them in columns.

    Args:
        sharding: as XLA writes it (`get_sharding_text`): "{devices=[2,4]0,1,2,3,4,5,6,7}",
            "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", "{replicated}".
        use_color: whether shards have colours, where the terminal has; else they have lines.
        scale: the height of a shard, in units of three lines.
        min_width: the least width of a shard, in columns of the terminal.
        max_width: the width of the table, unless the shards need more for the numbers in them.
        picture: a file to draw the same in, by matplotlib: a PNG or what its ending says.

    Returns:
        The table that was printed.

    Raises:
        ShardingError: it is no sharding of one array by shards.
        OptionError: matplotlib, which draws pictures, is not installed.
    """
    everywhere = list(range(topology.global_runtime_device_count()))
    assignment = read_sharding(sharding, everywhere)
    return _show(assignment, sharding, use_color, scale, min_width, max_width, picture)


def visualize_tensor_sharding(
    t: torch.Tensor,
    use_color: bool = True,
    scale: float = 1.0,
    min_width: int = 9,
    max_width: int = 80,
    picture: str | os.PathLike[str] | None = None,
) -> Table:
    """`visualize_sharding` of a marked tensor, over the devices of its mesh.

    A tensor of the device 'xla' without a mark has the sharding that its program gave it.

    Raises:
        ShardingError: the tensor is not sharded by a mark or a program.
        OptionError: matplotlib, which draws pictures, is not installed.
    """
    sharding = sharding_of(t)
    if sharding is None:
        raise ShardingError(
            f"a tensor of shape {tuple(t.shape)} is not marked: shard it by mark_sharding first"
        )
    title = f"{tuple(t.shape)} {sharding_text(sharding)}"
    assignment = tile_assignment(sharding)
    return _show(assignment, title, use_color, scale, min_width, max_width, picture)


def get_sharding_text(t: torch.Tensor) -> str:
    """The sharding of a marked tensor as XLA writes it, "" of a tensor that has none.

    As in "{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}": 2 by 1 shards, of which four
    devices each have the same. Its numbers are the ids of the mesh's devices.
    """
    sharding = sharding_of(t)
    return "" if sharding is None else sharding_text(sharding)


def _show(
    assignment: TileAssignment,
    title: str,
    use_color: bool,
    scale: float,
    min_width: int,
    max_width: int,
    picture: str | os.PathLike[str] | None,
) -> Table:
    grid, kind = grid_of(assignment), topology.device_type()
    if picture is not None:
        draw(grid, kind, title, picture)
    columns = len(grid.devices[0])
    names = [_name(kind, devices) for row in grid.devices for devices in row]
    widest = min(max(map(len, names)) + 2, max_width)
    fair = min(int(_HEIGHT * scale * _ASPECT), max_width // columns)
    width = max(fair, min_width, widest)
    # Wider than asked for rather than with numbers cut off.
    console = Console(width=max(max_width, columns * (width + 1) + 1))
    use_color = use_color and console.color_system is not None
    table = _table(grid, kind, use_color, width, int(_HEIGHT * scale))
    console.print(table, end="\n\n")
    return table


def _table(grid: ShardGrid, kind: str, use_color: bool, width: int, height: int) -> Table:
    table = Table(
        show_header=False,
        show_lines=not use_color,
        padding=0,
        pad_edge=False,
        box=None if use_color else SQUARE,
        caption=grid.caption or None,
    )
    for _ in grid.devices[0]:
        table.add_column(width=width)
    above, rest = divmod(max(height - 1, 0), 2)
    for i, row in enumerate(grid.devices):
        cells = []
        for j, devices in enumerate(row):
            color = color_of(i * len(row) + j, grid.size)
            style = f"{'white' if is_dark(color) else 'black'} on {color}" if use_color else ""
            name = Text(_name(kind, devices), justify="center")
            cells.append(Padding(name, (above, 0, above + rest, 0), style=style))
        table.add_row(*cells)
    return table


def _name(kind: str, devices: tuple[int, ...]) -> str:
    return f"{kind} {', '.join(map(str, devices))}"
