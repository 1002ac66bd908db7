"""The figures on the README's page: from files that are there, each with a command that runs."""

import re
import shlex

import pytest

from bench import __main__ as bench
from bench import demo, speed
from bench.results import Results, latency

SOURCES = pytest.mark.parametrize("source", speed.SOURCES, ids=lambda source: source.file)


@SOURCES
def test_each_source_has_figures_of_three_backends(source):
    assert len(source.over("eager")) == len(source.over("inductor")) >= 4
    assert speed.table().count(f"| {len(source.records())} |")


def test_the_readme_has_the_table():
    assert speed.README.read_text() == speed.readme(), "run `python -m bench.speed`"


def test_the_readme_is_read_aloud_in_two_minutes():
    """At 160 words a minute; code is not read, and of a link its text."""
    text = re.sub(r"```.*?```|<!--.*?-->|`[^`\n]+`", "", speed.README.read_text(), flags=re.DOTALL)
    words = re.findall(r"[\w.,'/+-]*\w[\w.,'/+-]*", re.sub(r"\]\([^)]*\)", "]", text))
    assert len(words) <= 320


@SOURCES
def test_each_line_names_a_command(source, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(bench, "run", lambda options, *others: asked.append(options))
    if source.command:
        assert source.command in ("make demo", "make gpu-check")
        with pytest.raises(SystemExit):
            bench.main(["again", source.file])
        assert "was measured by" in capsys.readouterr().err
    else:
        bench.main(shlex.split(f"{speed.AGAIN} {source.file}")[3:])
        assert asked[0].models or asked[0].suite == "standard"
        assert source.subject in asked[0].backends.split(",")
        assert f"again-{source.file}.jsonl" in str(asked[0].output)


def test_the_picture_has_every_processor(tmp_path):
    speed.draw(tmp_path / "speed.svg")
    drawn, kept = (p.read_text() for p in (tmp_path / "speed.svg", speed.PICTURE))
    for source in speed.SOURCES:
        assert f"<!-- {source.processor} -->" in drawn
        assert f"<!-- {source.processor} -->" in kept, "run `python -m bench.speed`"


def test_the_demo_writes_results(tmp_path):
    rows = {"bert": demo.Row({"eager": 0.2, "openxla": 0.1}, {"openxla": 3.0}, 1e-6)}
    options = demo.parsed(["--output", str(tmp_path / "demo.jsonl")])
    demo.write(rows, options)
    demo.write(rows, options)  # in place of the first
    results = Results(tmp_path / "demo.jsonl")
    assert results.run["settings"]["threads"] == options.threads
    assert latency(results.models["bert"], "openxla") == pytest.approx(100)
