"""Draw the shards of a tensor by matplotlib, into a file."""

import os
import textwrap

from xla_dynamo.errors import OptionError
from xla_dynamo.spmd.shard_grid import ShardGrid, color_of, is_dark


def draw(grid: ShardGrid, kind: str, title: str, path: str | os.PathLike[str]) -> None:
    """Write a picture of shards, each with its devices: a PNG, or what the file's ending says.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # not pyplot, which would choose a window system
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise OptionError(
            "picture=...: pictures are drawn by matplotlib, which is not installed: "
            f"pip install 'xla-dynamo[pictures]' ({error})"
        ) from error
    rows, columns = len(grid.devices), len(grid.devices[0])
    figure = Figure(figsize=(max(4.0, 1.3 * columns), max(2.5, 0.7 * rows + 1)), layout="tight")
    axes = figure.add_subplot(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    for i, row in enumerate(grid.devices):
        for j, devices in enumerate(row):
            color = color_of(i * columns + j, grid.size)
            axes.add_patch(Rectangle((j, i), 1, 1, facecolor=color, edgecolor="white"))
            text = textwrap.fill(f"{kind} {', '.join(map(str, devices))}", 20)
            ink = "white" if is_dark(color) else "black"
            axes.text(j + 0.5, i + 0.5, text, ha="center", va="center", color=ink, fontsize=9)
    axes.set_title(textwrap.fill(title, 24 + 12 * columns), fontsize=9)
    axes.set_xlabel(grid.caption)
    figure.savefig(path, dpi=150)
