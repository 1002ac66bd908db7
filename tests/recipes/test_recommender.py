"""The recipe of a recommender: eager's losses, one executable for a step."""

import numpy as np

from docs.examples.recipes import recommender


def test_recommender(tmp_path, executables, split_graphs):
    arguments = ["--items", "240", "--steps", "120", "--batch", "512", "--out", str(tmp_path)]
    losses, auc, best = recommender.main(arguments)
    np.testing.assert_allclose(losses["train_step"][:20], losses["eager"][:20], rtol=1e-3)
    assert 0.7 < auc < best + 0.02
    assert executables() == 2  # the step, and the model that scores new users
    assert not split_graphs
    assert (tmp_path / "recommender.png").stat().st_size > 10_000
