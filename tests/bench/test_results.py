"""The benchmark's files of results, and what is computed, compared and reported from them."""

import math
import pathlib

import pytest
from rich.console import Console

from bench import __main__ as command_line
from bench import report
from bench.compare import compare
from bench.results import Results, geometric_mean, latency, speedup

pytestmark = [pytest.mark.filterwarnings("ignore")]


def record(model, **milliseconds):
    rows = {b: {"status": "ok", "ms": [ms] * 3, "peak_mb": 1.0} for b, ms in milliseconds.items()}
    return {"model": model, "backends": rows}


def test_figures(tmp_path):
    one = record("one", eager=4.0, inductor=2.0, openxla=1.0)
    assert speedup(one, "openxla", ["eager", "inductor"]) == 2
    assert speedup(one, "openxla", ["torchax"]) is None
    one["backends"]["inductor"]["status"] = "timeout"
    assert latency(one, "inductor") is None
    assert speedup(one, "openxla", ["eager", "inductor"]) == 4
    assert geometric_mean([2, None, 8]) == pytest.approx(4)
    assert math.isnan(geometric_mean([None]))


def test_speedups_are_over_the_inductor_that_ran(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    results.append(record("one", eager=4.0, openxla=2.0))
    assert [what for what, *_ in report.means(results)][:2] == [
        "speedup over eager",
        "peak memory / eager's",
    ]
    results.append(record("one", **{"eager": 4.0, "inductor-max": 3.0, "openxla": 2.0}))
    assert report.means(results)[0] == (
        "speedup over the better of eager and inductor-max",
        pytest.approx(1.5),
        1,
    )
    results.append(
        record("one", **{"eager": 4.0, "inductor": 3.5, "inductor-max": 3.0, "openxla": 2.0})
    )
    assert report.means(results)[0] == (
        "speedup over the better of eager and inductor",
        pytest.approx(1.75),
        1,
    )


def test_runtimes_have_a_column_and_a_mean(tmp_path):
    """A runtime that failed is not counted, and the pause before each round is told."""
    results = Results(tmp_path / "results.jsonl")
    results.append({"run": "a command", "settings": {"pause": 0.3}})
    results.append(record("one", eager=8.0, openxla=2.0, openvino=1.0, onnxruntime=4.0))
    results.append(record("two", eager=8.0, openxla=2.0, openvino=1.0, onnxruntime=4.0))
    results.models["two"]["backends"]["openvino"] = {"status": "error", "message": "no operator"}
    place = report.columns(results).index("over runtimes")
    rows = [report.row(results, one) for one in results.models.values()]
    assert [cells[place - 1 : place + 1] for cells in rows] == [["4.00", "0.50"], ["4.00", "2.00"]]
    found = {what: (mean, count) for what, mean, count in report.means(results)}
    assert found["speedup over the better of openvino and onnxruntime"] == (pytest.approx(1), 2)
    assert found["speedup over openvino"] == (pytest.approx(0.5), 1)
    assert "begins after a pause of 0.3 s" in report.caption(results)
    results.run["settings"].pop("pause")
    assert "pause" not in report.caption(results)


def test_comparison(tmp_path):
    before, after = Results(tmp_path / "before.jsonl"), Results(tmp_path / "after.jsonl")
    before.append(record("one", eager=4.0, openxla=2.0))
    before.append(record("two", eager=4.0, openxla=2.0))
    after.append(record("one", eager=8.0, openxla=2.0))  # a slower machine, and twice as fast
    after.append(record("two", eager=4.0, openxla=2.0))
    after.models["two"]["backends"]["openxla"]["status"] = "wrong"
    console = Console(record=True, width=120)
    compare(before, after, console)
    text = console.export_text()
    assert "2.00" in text
    assert "wrong" in text
    assert "geometric mean 2.000" in text


def test_a_line_without_an_end_is_measured_again(tmp_path):
    """The run was killed while it wrote it."""
    path = tmp_path / "results.jsonl"
    path.write_text('{"model": "one", "backends": {}}\n{"model": "two", "backends": {}}')
    results = Results(path)
    assert list(results.models) == ["one"]
    results.append({"model": "three", "backends": {}})
    assert list(Results(path).models) == ["one", "three"]


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "5",
        '{"foo": 1}',
        '{"run": "python -m bench run"}',
        '{"model": "one"}',
        '{"model": ["one"], "backends": {}}',
        '{"model": "one", "backends": {"eager": 5}}',
        '{"model": "one", "backends": {"eager": {"status": "ok", "ms": [1.0, NaN]}}}',
        '{"model": "one", "backends": {"eager": {"status": "ok", "ms": 1.0}}}',
    ],
)
def test_lines_that_are_none(line, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(line + '\n{"model": "one", "backends": {}}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl:1"):
        Results(path)


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_bytes(b'{"model": "\xff"}\n')
    with pytest.raises(ValueError, match=r"results\.jsonl is no file of results"):
        Results(path)


@pytest.mark.parametrize("text", ["", '{"model": "one", "backends": {}}\n'])
def test_there_is_nothing_to_report(text, tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text(text)
    for arguments in (["report", str(path)], ["compare", str(path), str(path)]):
        with pytest.raises(SystemExit):
            command_line.main(arguments)
        assert "there are no results" in capsys.readouterr().err


def test_files_of_other_models_are_not_compared(tmp_path, capsys):
    paths = [str(tmp_path / f"{model}.jsonl") for model in ("one", "two")]
    for path, model in zip(paths, ("one", "two"), strict=True):
        Results(pathlib.Path(path)).append(record(model, eager=1.0, openxla=1.0))
    with pytest.raises(SystemExit):
        command_line.main(["compare", *paths])
    assert "have no model in common" in capsys.readouterr().err


def test_the_report_tells_failures(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    results.append(record("one", eager=4.0, openxla=2.0))
    failed = {"status": "crash", "message": "<b>|\nx"}
    results.append({"model": "two", "backends": {"openxla": failed}})
    console = Console(record=True, width=200)
    report.show(results, console)
    assert "two, openxla: crash <b>" in console.export_text()
    assert "&lt;b&gt;" in report.page(results)
    assert report.markdown(results).endswith("\n| two | openxla | crash | <b>\\| x |\n")
