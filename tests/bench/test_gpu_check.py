"""The check on a GPU, on the CPU: items that crash, hang or fail are told, and the others run."""

import json

import pytest

from bench.gpu_check import __main__ as gpu_check
from bench.gpu_check import comparison, items


def checked(monkeypatch, folder, *arguments):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setattr("sys.argv", ["gpu_check", "--out", str(folder), *arguments])
    status = gpu_check.main()
    return status, json.loads((folder / "report.json").read_text())


def test_the_report(tmp_path, monkeypatch, capsys):
    status, report = checked(monkeypatch, tmp_path, "--items", "environment,zero_copy")
    assert status == 0, (tmp_path / "report.md").read_text()
    assert report["device"] == "cpu"
    assert [one["status"] for one in report["items"]] == ["ok", "ok"]
    versions, devices = report["items"][0]["checks"]
    assert versions["figures"]["torch"]
    assert devices["figures"]["pjrt"] == "cpu"
    page = (tmp_path / "report.md").read_text()
    assert page in capsys.readouterr().out
    assert "| zero_copy: a change in place | ok |" in page


# In the place of the module that a process of an item runs: a check passes, and then...
ENDS = """
import json, os, sys, time
if __name__ == "__main__":
    with open(sys.argv[3], "a") as lines:
        record = {"check": "first", "status": "ok", "figures": {"n": 1}, "seconds": 0.1}
        lines.write(json.dumps(record) + "\\n")
    print("about to end", flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("os.abort()", "ended by signal SIGABRT"),
        ("sys.exit(3)", "ended by exit status 3"),
        ("time.sleep(60)", "took more than 2 s"),
    ],
)
def test_an_item_that_does_not_end_well(tmp_path, monkeypatch, end, status):
    package = tmp_path / "root" / "bench" / "gpu_check"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "items.py").write_text(ENDS.replace("{end}", end))
    monkeypatch.setattr(gpu_check, "ROOT", tmp_path / "root")
    found = gpu_check.examine("tiny", "cpu", tmp_path, 2)
    assert found.status == status
    assert found.checks[0]["figures"] == {"n": 1}  # what was done before is kept
    assert "about to end" in gpu_check.page([found], "cpu")


def test_what_there_is_no_time_for(tmp_path, monkeypatch):
    status, report = checked(monkeypatch, tmp_path, "--budget", "5")
    assert status == 1
    assert {one["status"] for one in report["items"]} == {"not run"}
    assert len(report["items"]) == len(items.ITEMS)


def test_an_unknown_item(tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        checked(monkeypatch, tmp_path, "--items", "tiny,magic")
    assert "unknown items: magic" in capsys.readouterr().err


def test_results_that_differ_are_told():
    import torch

    with pytest.raises(AssertionError, match="close"):
        comparison.assert_same(torch.ones(3), torch.ones(3) + 1e-4)
    comparison.assert_same(torch.ones(3), torch.ones(3) + 1e-7)
    half = torch.ones(3, dtype=torch.bfloat16)
    with pytest.raises(AssertionError, match="the error is"):
        comparison.assert_as_near(half * 1.1, half, torch.ones(3).double())
    comparison.assert_as_near(half, half, torch.ones(3).double())
