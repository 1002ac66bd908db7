"""`tune`: what it measures is what a later process takes. Each test begins cold."""

import pytest

from tests.packing import needs_onednn
from tests.runtime.disk_caches import cache_in
from xla_dynamo.command_line import main
from xla_dynamo.kernels import measurements
from xla_dynamo.process_state import replaced

pytestmark = needs_onednn
COMMAND = ["tune", "some_models:Model", "--input", "float32[64,8]", "--no-grad"]


@pytest.fixture
def folder(tmp_path):
    """The folder of the disk cache, empty; and nothing was measured before."""
    with replaced(), cache_in(tmp_path / "cache") as folder:
        yield folder


def test_what_was_chosen_is_told_and_kept(models, folder, capsys):
    assert main(COMMAND) == 0
    told = capsys.readouterr().out
    assert "some_models:Model: 1 product measured" in told
    assert "float32 64 x 8 x " in told
    assert "by what was measured" in told
    assert str(folder.path) in told
    known = measurements.everything()
    vars(measurements._known).update(vars(measurements._Known()))
    with cache_in(folder.path):
        assert main(COMMAND) == 0
        assert "0 products measured" in capsys.readouterr().out
        assert measurements.everything() == known


def test_a_folder_that_is_only_read_gets_nothing(models, tmp_path, capsys):
    with replaced(), cache_in(tmp_path / "cache", readonly=True):
        assert main(COMMAND) == 1
    assert "nothing is measured" in capsys.readouterr().err


def test_a_target_that_fails_is_told(models, folder, capsys):
    assert main(["tune", "some_models:Model", "--input", "float32[64,9]", "--no-grad"]) == 2
    assert "some_models:Model failed with" in capsys.readouterr().err
    assert not measurements._known.are_ignored
