"""The examples do what they promise."""

import torch

from docs.examples import digits, gpt


def test_digits(tmp_path):
    whole, resumed = digits.main(["--out", str(tmp_path)])
    assert whole >= 0.97
    assert resumed >= 0.97
    assert (tmp_path / "loss.png").stat().st_size > 10_000


def test_gpt(tmp_path):
    losses = gpt.main(["--steps", "40", "--batch", "4", "--out", str(tmp_path)])
    assert losses[0] > 5  # log(256) = 5.5
    assert losses[-1] < 4
    weights = torch.load(tmp_path / "model.pt")
    assert weights["tokens.weight"].shape == (256, 128)
    assert (tmp_path / "loss.png").exists()
