"""The recipe of a fully sharded language model: eager's losses, shards, and runs that go on.

Cold: each job is a process of its own, with no cache on the disk. It claims the lazy device, which
would change the process of the tests for good.
"""

import argparse
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from docs.examples import gpt
from docs.examples.recipes import llm_fsdp
from docs.examples.recipes.common import eager_step
from tests.processes.jobs import ROOT

SMALL = ["--width", "32", "--layers", "1", "--batch", "4"]


def run(folder, *arguments, recipe="llm_fsdp"):
    """The job's output, which has to end well, and the figures that it wrote."""
    command = [sys.executable, "-m", f"docs.examples.recipes.{recipe}", *SMALL, *arguments]
    ended = subprocess.run(
        [*command, "--out", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-3000:]
    return ended.stdout, json.loads((folder / "figures.json").read_text())


def eager_losses(steps):
    text, options = gpt.corpus(), argparse.Namespace(width=32, layers=1)
    model = llm_fsdp.new_model(options, "cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    step = eager_step(model, gpt.loss_fn, optimizer)
    return [step(llm_fsdp.batch_of(text, 4, number)).item() for number in range(steps)]


@pytest.mark.every(3)
@pytest.mark.parametrize("processes", [1, 2])
def test_llm_fsdp(tmp_path, processes):
    """Losses are eager's, also behind a checkpoint that another number of devices loads."""
    own = "--devices", str(2 // processes), "--processes", str(processes), "--save-every", "4"
    _, first = run(tmp_path, "--devices", "4", "--steps", "3")
    told, second = run(tmp_path, *own, "--steps", "8")
    assert "goes on behind step 3" in told
    assert first["losses"] == second["losses"][:3]
    np.testing.assert_allclose(second["losses"], eager_losses(8), rtol=1e-4)
    assert second["losses"][-1] < 0.97 * second["losses"][0]
    for figures, devices in ((first, 4), (second, 2)):
        assert figures["devices"] == devices
        # Each device is given its part, and little besides: the batch and AdamW's counts.
        assert 0 <= figures["held"] - figures["everything"] / devices < 8_000
    kept = {path.name for path in (tmp_path / "checkpoints").iterdir()} - {".lock"}
    assert kept == {"4", "8"}
    weights = torch.load(tmp_path / "model.pt")
    assert weights["tokens.weight"].shape == (256, 32)
    assert (tmp_path / "loss.png").stat().st_size > 5_000


@pytest.mark.every(6)
def test_llm_fsdp2(tmp_path):
    """Two processes have eager's losses, and half of everything each."""
    _, figures = run(tmp_path, "--processes", "2", "--steps", "4", recipe="llm_fsdp2")
    np.testing.assert_allclose(figures["losses"], eager_losses(4), rtol=1e-4)
    assert figures["devices"] == 2
    assert figures["held"] == figures["everything"] / 2
    weights = torch.load(tmp_path / "model.pt")
    assert weights["head.weight"].shape == (256, 32)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--devices", "0"], "argument --devices"),
        (["--devices", "3", "--processes", "2"], "--batch 16 cannot be shared by 6 devices"),
    ],
)
def test_wrong_numbers(wrong, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        llm_fsdp.main(wrong)
    assert message in capsys.readouterr().err
