"""What the tests of commands share: a module of models where the command is called."""

import sys

import pytest

from tests.command_line.some_models import MODELS


@pytest.fixture
def models(tmp_path, monkeypatch):
    """A module `some_models` in the folder that the command is called in."""
    (tmp_path / "some_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield tmp_path
    sys.modules.pop("some_models", None)
