"""The load on a server is measured, and its answers are checked."""

import sys

import pytest

from bench import serve_load


def test_percentiles_are_milliseconds():
    samples = [n / 1000 for n in range(100, 0, -1)]
    assert serve_load.percentile(samples, 50) == "51.0"
    assert serve_load.percentile(samples, 99) == "100.0"
    assert serve_load.percentile([], 50) == "-"


@pytest.mark.slow  # starts a server
@pytest.mark.usefixtures("others_may_warn")
def test_a_short_load(monkeypatch, capfd):
    given = ["serve_load", "--seconds", "3", "--clients", "4", "--longest", "128"]
    monkeypatch.setattr(sys, "argv", [*given, "--requests", "3"])
    assert serve_load.main() == 0
    said = capfd.readouterr().out
    assert "compilations: 0; exit status: 0; wrong: 0" in said
