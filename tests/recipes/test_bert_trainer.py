"""The recipe of BERT and the Trainer: it learns as in eager, and what it leaves is fine-tuned."""

import pytest
import transformers

from docs.examples.recipes import bert_trainer


@pytest.mark.every(2)
def test_bert_trainer(tmp_path, executables, split_graphs, others_may_warn):
    packages = ["--packages", "asyncio", "email"]
    small = [*packages, "--texts", "300", "--batch", "16", "--out", str(tmp_path)]
    losses, accuracies = bert_trainer.main([*small, "--steps", "40"])
    for name in ("compiled", "eager"):
        assert len(losses[name]) == 40
        assert sum(losses[name][-10:]) < 0.6 * sum(losses[name][:10])
        assert accuracies[name] > 0.7
    assert executables() < 8  # of training, evaluation and its last batch, and what is timed
    assert not split_graphs
    assert (tmp_path / "bert_trainer.png").stat().st_size > 10_000

    # The model that is fine-tuned has the names of an ordinary one, and is fine-tuned further.
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert model.num_labels == 2
    folder = ["--model", str(tmp_path / "model"), "--lr", "1e-4"]
    again, _ = bert_trainer.main([*small, *folder, "--steps", "2"])
    assert again["eager"][0] < 0.9 * losses["eager"][0]


def test_a_package_that_is_not_there(tmp_path):
    with pytest.raises(SystemExit, match=r"no package with modules \['nonsense'\]"):
        bert_trainer.main(["--packages", "http", "email", "nonsense", "--out", str(tmp_path)])
