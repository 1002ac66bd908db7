"""The benchmark of processes: a job each, checked against one process in eager."""

import json

import pytest

from bench import multi_process


@pytest.mark.every(2)
def test_a_mesh(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BENCH_SIZES", "[4, 8, 64, 32, 2, 1]")
    lines = tmp_path / "lines"
    arguments = ["--processes", "2", "--steps", "2", "--output", str(lines)]
    monkeypatch.setattr("sys.argv", ["x", "--ways", "mesh", *arguments])
    assert multi_process.main() == 0
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [r["way"] for r in records] == ["mesh"]
    assert all(len(r["times"]) == 2 for r in records)
    assert records[0]["sent"] > 0
    assert "mesh" in capsys.readouterr().out
