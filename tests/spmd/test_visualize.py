"""Shardings are shown as tables and pictures, and told as XLA writes them."""

import pathlib
import re
import sys

import pytest
import torch
from rich.console import Console

from tests.spmd.sharding import ONE_AXIS, TALL, WIDE
from xla_dynamo import spmd
from xla_dynamo.errors import OptionError, ShardingError
from xla_dynamo.spmd.shard_grid import color_of, is_dark

PNG = b"\x89PNG\r\n\x1a\n"


def marked(shape, mesh, partition_spec):
    return spmd.mark_sharding(torch.zeros(shape), mesh, partition_spec)


def cells(printed):
    """The devices of each shard, by rows, of what was printed."""
    rows = [line for line in printed.splitlines() if "CPU" in line]
    return [[re.findall(r"\d+", cell) for cell in row.strip("│ \n").split("│")] for row in rows]


@pytest.mark.parametrize(
    ("mesh", "partition_spec", "text"),
    [
        (WIDE, ("data", "model"), "{devices=[2,4]0,1,2,3,4,5,6,7}"),
        (WIDE, ("model", "data"), "{devices=[4,2]0,4,1,5,2,6,3,7}"),
        (WIDE, (("data", "model"), None), "{devices=[8,1]0,1,2,3,4,5,6,7}"),
        (WIDE, (None, "data"), "{devices=[1,2,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"),
        (WIDE, ("model", None), "{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}"),
        (WIDE, (None, None), "{replicated}"),
        (ONE_AXIS, ("x", None), "{devices=[8,1]0,1,2,3,4,5,6,7}"),
        (spmd.Mesh([3, 1, 0, 2], (4,)), (0, None), "{devices=[4,1]3,1,0,2}"),
    ],
)
def test_texts(mesh, partition_spec, text):
    assert spmd.get_sharding_text(marked((16, 8), mesh, partition_spec)) == text


def test_no_mark_has_no_text():
    assert spmd.get_sharding_text(torch.zeros(4)) == ""
    with pytest.raises(ShardingError, match=r"shape \(4,\) is not marked"):
        spmd.visualize_tensor_sharding(torch.zeros(4))


def test_a_matrix(capsys):
    spmd.visualize_tensor_sharding(marked((16, 8), WIDE, ("data", "model")))
    assert cells(capsys.readouterr().out) == [
        [["0"], ["1"], ["2"], ["3"]],
        [["4"], ["5"], ["6"], ["7"]],
    ]
    spmd.visualize_tensor_sharding(marked((16, 8), TALL, ("data", None)))
    assert cells(capsys.readouterr().out) == [
        [["0", "1"]],
        [["2", "3"]],
        [["4", "5"]],
        [["6", "7"]],
    ]


def test_a_vector_is_a_row(capsys):
    spmd.visualize_tensor_sharding(marked((8,), WIDE, ("model",)))
    assert cells(capsys.readouterr().out) == [[["0", "4"], ["1", "5"], ["2", "6"], ["3", "7"]]]


def test_more_dimensions(capsys):
    spmd.visualize_tensor_sharding(marked((4, 3, 8, 5), WIDE, ("data", None, "model", None)))
    printed = capsys.readouterr().out
    assert cells(printed)[1] == [["4"], ["5"], ["6"], ["7"]]
    assert "rows: dimension 0; columns: dimension 2; of 4" in " ".join(printed.split())
    spmd.visualize_tensor_sharding(marked((4, 3, 8), WIDE, ("data", None, None)))
    assert cells(capsys.readouterr().out) == [[["0", "1", "2", "3"]], [["4", "5", "6", "7"]]]


def test_a_whole_tensor_is_on_its_mesh(capsys):
    four = spmd.Mesh(range(4), (4,))
    spmd.visualize_tensor_sharding(marked((4, 4), four, (None, None)))
    assert cells(capsys.readouterr().out) == [[["0", "1", "2", "3"]]]
    spmd.visualize_sharding("{replicated}")  # of which no mesh is known
    assert cells(capsys.readouterr().out) == [[[str(i) for i in range(8)]]]


def test_by_text(capsys):
    spmd.visualize_sharding("{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}")
    assert cells(capsys.readouterr().out) == [[["0", "2", "4", "6"]], [["1", "3", "5", "7"]]]
    with pytest.raises(ShardingError, match="not the sharding of an array"):
        spmd.visualize_sharding("{manual}")


def test_sizes(capsys):
    t = marked((16, 8), WIDE, ("data", "model"))
    spmd.visualize_tensor_sharding(t, use_color=False)
    small = capsys.readouterr().out.strip().splitlines()
    spmd.visualize_tensor_sharding(t, use_color=False, scale=2, min_width=15)
    large = capsys.readouterr().out.strip().splitlines()
    assert (len(small), len(small[0])) == (2 * 3 + 3, 4 * 9 + 5)
    assert (len(large), len(large[0])) == (2 * 6 + 3, 4 * 15 + 5)
    # Wider than asked for, rather than with a device cut off.
    spmd.visualize_tensor_sharding(t, max_width=20)
    assert cells(capsys.readouterr().out)[1][3] == ["7"]


def test_colours(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    table = spmd.visualize_tensor_sharding(marked((16, 8), WIDE, ("data", "model")))
    backgrounds = re.findall(r"48;2;\d+;\d+;\d+", capsys.readouterr().out)
    assert len(set(backgrounds)) == 8
    assert table.box is None
    spmd.visualize_tensor_sharding(marked((8,), WIDE, ("model",)), use_color=False)
    assert "48;2" not in capsys.readouterr().out


def test_colours_differ_and_can_be_read_on():
    colors = [color_of(number, 64) for number in range(64)]
    assert len(set(colors)) == 64
    assert is_dark("#000000")
    assert not is_dark("#ffffff")


def test_the_table_can_be_printed_again(capsys):
    table = spmd.visualize_tensor_sharding(marked((8,), ONE_AXIS, ("x",)))
    first = capsys.readouterr().out
    Console(width=200).print(table)
    assert cells(capsys.readouterr().out) == cells(first)


def test_a_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "sharding.png"
    spmd.visualize_tensor_sharding(marked((16, 8), WIDE, ("data", "model")), picture=path)
    content = path.read_bytes()
    assert content.startswith(PNG)
    # As wide as four shards, of two inches in height at least.
    width, height = (int.from_bytes(content[i : i + 4], "big") for i in (16, 20))
    assert (width, height) == (780, 375)
    spmd.visualize_sharding("{devices=[8,1]<=[8]}", picture=str(tmp_path / "other.svg"))
    drawn = (tmp_path / "other.svg").read_text()
    assert all(f"CPU {i}" in drawn for i in range(8))


def test_pictures_need_matplotlib(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    path: pathlib.Path = tmp_path / "sharding.png"
    with pytest.raises(OptionError, match=r"pip install 'xla-dynamo\[pictures\]'"):
        spmd.visualize_sharding("{replicated}", picture=path)
    assert not path.exists()
    assert not capsys.readouterr().out
