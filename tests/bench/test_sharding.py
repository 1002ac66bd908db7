"""The benchmark of a sharded Llama block: predictions hold. Everything is compiled cold."""

import json

import pytest
from rich.console import Console

from bench import __main__ as command_line
from bench import sharding, sharding_prediction
from bench.processes import WorkerFailed
from bench.sharding_block import Devices
from bench.sharding_prediction import (
    RECIPES,
    Machines,
    Sizes,
    mesh_shape,
    seconds,
    textbook,
    with_loss,
)

SMALL = Sizes(hidden=64, inner=128, heads=8, batch=2, tokens=16)


def test_meshes():
    assert [mesh_shape("data, tensor", n) for n in (4, 8, 16, 32, 1024)] == [
        (2, 2), (2, 4), (4, 4), (4, 8), (128, 8),
    ]  # fmt: skip
    assert mesh_shape("tensor", 8) == (8,)


def test_the_textbook():
    weights = (4 * 64**2 + 3 * 64 * 128 + 2 * 64) * 4
    stream = 2 * 16 * 64 * 4
    assert textbook("data", 8, SMALL) == {"data": 2 * weights * 7 / 8}
    assert textbook("fully sharded", 8, SMALL) == {"data": 2 * weights * 7 / 8}
    assert textbook("tensor", 8, SMALL) == {"model": 4 * 2 * stream * 7 / 8}
    both = textbook("data, tensor", 8, SMALL)
    assert both["model"] == 4 * 2 * stream * 3 / 4
    assert both["data"] == 2 * ((weights - 2 * 64 * 4) / 4 + 2 * 64 * 4) / 2
    for recipe in RECIPES:
        assert sum(textbook(recipe, 1, SMALL).values()) == 0


def test_seconds_of_a_step():
    """By hand: 1 MB of bfloat16 a block at 1 GB/s, and messages that take no time or all of it."""
    sizes = Sizes(hidden=512, inner=512, heads=8, batch=1, tokens=1000)
    free = Machines(model_gbs=1, data_gbs=1, latency_us=1e-9, tflops=1)
    found = seconds("tensor", 8, sizes, 3, 16, free)
    assert found["compute"] == pytest.approx(3 * 6 * 7 * 512**2 / 8 * 1000 / 1e12)
    assert found["model"] == pytest.approx(3 * 8 * (7 / 8) * 1000 * 512 * 2 / 1e9)
    slow = Machines(model_gbs=1e9, data_gbs=1e9, latency_us=1e6, tflops=1)
    found = seconds("data, tensor", 8, sizes, 3, 16, slow)
    assert found["data"] == pytest.approx(3 * 2 * 1, rel=1e-3)  # two in a ring: one message a pass
    assert found["model"] == pytest.approx(3 * 8 * 3, rel=1e-3)


def test_the_extrapolation(monkeypatch, capsys):
    command = ["prediction", "--devices", "8", "1000", "--layers", "2"]
    monkeypatch.setattr("sys.argv", command)
    sharding_prediction.main()
    printed = capsys.readouterr().out
    assert "2 blocks on 1,000 devices" in printed
    rows = [line.split("│") for line in printed.splitlines() if line.startswith("│")]
    found = [(row[1].strip(), row[2].strip()) for row in rows]
    assert found == [
        ("data", "8"), ("fully sharded", "8"), ("tensor", "8"), ("data, tensor", "2x4"),
        ("data", "1000"), ("fully sharded", "1000"), ("data, tensor", "125x8"),
    ]  # fmt: skip
    weights = 2 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) * 2 / 1e9
    assert float(rows[0][5]) == pytest.approx(weights, abs=1e-3)
    assert float(rows[0][3]) == pytest.approx(2 * 7 / 8 * weights, abs=1e-3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "recipe",
    [
        "data, tensor",
        "fully sharded",
        pytest.param("data", marks=pytest.mark.slow),
        pytest.param("tensor", marks=pytest.mark.slow),
    ],
)
def test_a_block_is_as_predicted(recipe):
    devices = Devices(8, {**vars(SMALL)}, 1)
    figures = devices.measure(recipe, True)
    due = with_loss(recipe, 8, SMALL)
    if recipe == "fully sharded":  # where activations are smaller than weights, they move
        assert 0 < figures["by_axis"]["data"] <= due["data"]
    else:
        assert figures["by_axis"] == pytest.approx(due, rel=1e-6)
    assert figures["error"] < 1e-4
    assert 0 < figures["partitioning"] < figures["xla"]
    weights = (SMALL.matrices() + SMALL.norms()) * 4
    # Each device has its share of the matrices.
    share = {"fully sharded": 8, "data": 1, "tensor": 8, "data, tensor": 4}[recipe]
    assert weights / share < figures["argument_bytes"] < 1.5 * weights / share + 20_000


@pytest.mark.filterwarnings("ignore")
def test_compiled_without_a_run():
    figures = Devices(8, {**vars(SMALL)}, 1).measure("data", False)
    assert figures["error"] is None
    assert figures["by_axis"] == pytest.approx(with_loss("data", 8, SMALL))


def record(devices, recipe, error=1e-7, **more):
    shape = mesh_shape(recipe, devices)
    sent = 1.75 * sum(textbook(recipe, devices, SMALL).values())
    figures = {"lowering": 0.1, "partitioning": 0.02, "xla": 1.5, "argument_bytes": 1e6}
    return {
        "devices": devices, "recipe": recipe, "mesh": list(shape), "error": error,
        "sent": {"all-reduce": sent}, "collectives": {"all-reduce": 2}, **figures, **more,
    }  # fmt: skip


def test_tables(capsys):
    records = [record(8, "tensor"), record(1, "data", xla=1.0), record(8, "data", error=None)]
    console = Console(width=200)
    console.print(sharding.times_table(records))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert [row.split("│")[1].strip() for row in rows] == ["one device", "data", "tensor"]
    assert rows[1].split("│")[-2].strip() == "1.50"
    console.print(sharding.bytes_table(records, SMALL))
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert len(rows) == 2
    assert "1.75" in rows[1]
    assert "not run" in rows[0]


class Asked:
    """A worker whose figures are those that are predicted, but for one that is wrong."""

    def __init__(self, **options):
        self.devices = int(options["environment"]["CPU_NUM_DEVICES"])
        self.seconds = iter([9, 3, 1, 2] * 20)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def close(self):
        pass

    def ask(self, what, timeout, **asked):
        if what == "prepare":
            return {}
        error = 1e-2 if asked["recipe"] == "tensor" else 1e-7
        error = error if asked["runs"] else None
        return record(self.devices, asked["recipe"], error, xla=next(self.seconds))


def test_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sharding, "Worker", Asked)
    path = tmp_path / "out" / "results.jsonl"
    given = ["--devices", "1", "2", "4", "--compiled-only", "64", "--output", str(path)]
    sizes = ["--hidden", "64", "--inner", "128", "--heads", "8", "--tokens", "16", "--batch", "2"]
    assert command_line.main(["sharding", *given, *sizes]) == 1
    assert "tensor, 2: loss off by 1.0e-02" in capsys.readouterr().out
    first, *lines = map(json.loads, path.read_text().splitlines())
    assert first["run"].startswith("python -m bench sharding --devices 1 2 4 --compiled-only 64")
    assert first["settings"]["sizes"] == vars(SMALL)
    assert len(first["load"]) == 3
    # One device once; no mesh with an axis of one device; no model axis beyond the heads.
    turn = [
        (1, "data"),
        (2, "data"), (2, "fully sharded"), (2, "tensor"),
        (4, "data"), (4, "fully sharded"), (4, "tensor"), (4, "data, tensor"),
        (64, "data"), (64, "fully sharded"), (64, "data, tensor"),
    ]  # fmt: skip
    assert [(r["devices"], r["recipe"]) for r in lines] == turn * 3
    ran = [(r["devices"], r["turn"]) for r in lines if r["error"] is not None]
    assert set(ran) == {(1, 0), (2, 0), (4, 0)}
    alone = [r for r in sharding.fastest(lines) if r["devices"] == 1]
    assert [r["xla"] for r in alone] == [1]  # of 3, 1 and 2; the warm-up does not count
    right = ["--recipes", "data", "--devices", "2", "--compiled-only", "--output", str(path)]
    assert command_line.main(["sharding", *right]) == 0
    # Tensor parallel alone has nothing for 1,024 devices, and one device is measured anyhow.
    other = ["--recipes", "tensor", "--devices", "1", "--output", str(path)]
    assert command_line.main(["sharding", *other]) == 0
    _, *lines = map(json.loads, path.read_text().splitlines())
    assert [(line["devices"], line["load"] >= 0) for line in lines] == [(1, True)] * 3


def test_what_was_measured_before_a_failure_is_kept(monkeypatch, tmp_path, capsys):
    class Dying(Asked):
        def ask(self, what, timeout, **asked):
            if asked.get("recipe") == "fully sharded":
                raise WorkerFailed("crash", "died in measure")
            return super().ask(what, timeout, **asked)

    monkeypatch.setattr(sharding, "Worker", Dying)
    path = tmp_path / "results.jsonl"
    given = ["--devices", "2", "--compiled-only", "--output", str(path)]
    assert command_line.main(["sharding", *given]) == 1
    assert "2 devices: crash: died in measure" in capsys.readouterr().out
    _, line = map(json.loads, path.read_text().splitlines())
    assert line["recipe"] == "data"  # once: the process is gone in the later turns
