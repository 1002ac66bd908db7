"""transformers: its Trainer, its losses, generation and pipelines call compiled models."""

import copy

import pytest
import torch
import transformers
from torch._dynamo.utils import counters

from tests.libraries import tiny_text
from tests.libraries.recipes import run_recipe
from xla_dynamo.runtime import metrics


@pytest.fixture(autouse=True)
def nothing_compiled_yet():
    metrics.clear_all()
    counters.clear()


def executables():
    return metrics.counter_value("UncachedCompile")


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_trainer(tmp_path):
    model = tiny_text.gpt2()
    reference = copy.deepcopy(model)
    ids = torch.randint(0, 100, (12, 12))
    dataset = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        tmp_path,
        max_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    expected = transformers.Trainer(reference, arguments, train_dataset=dataset)
    expected.train()
    names = run_recipe("Trainer", model=model, arguments=arguments, dataset=dataset)
    assert executables() > 0
    assert losses(names["trainer"]) == pytest.approx(losses(expected), abs=1e-5)
    assert len(losses(expected)) == 3
    torch.testing.assert_close(model.state_dict(), reference.state_dict(), atol=1e-4, rtol=1e-4)


def test_its_own_flags_are_refused(tmp_path, monkeypatch):
    """By accelerate, to which the Trainer hands the name; docs/recipes.md says what to do."""
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")  # TrainingArguments sets it for good
    flags = {"torch_compile": True, "torch_compile_backend": "openxla", "use_cpu": True}
    arguments = transformers.TrainingArguments(tmp_path, report_to=[], **flags)
    with pytest.raises(ValueError, match="'OPENXLA' is not a valid DynamoBackend"):
        transformers.Trainer(tiny_text.gpt2(), arguments)


def test_train_step():
    """The loss function logs a warning, which must not stop the trace."""
    model = tiny_text.gpt2()
    reference = copy.deepcopy(model)
    batches = torch.randint(0, 100, (3, 4, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    names = run_recipe("train_step", model=model, optimizer=optimizer, batches=batches)
    eager = torch.optim.SGD(reference.parameters(), lr=0.1)
    for ids in batches:
        eager.zero_grad()
        expected = reference(input_ids=ids, labels=ids).loss
        expected.backward()
        eager.step()
    torch.testing.assert_close(names["loss"], expected.detach())
    torch.testing.assert_close(model.state_dict(), reference.state_dict())
    assert executables() == 1


def test_generate():
    model = tiny_text.gpt2().eval()
    ids = torch.randint(0, 100, (2, 5))
    expected = model.generate(ids, max_new_tokens=24, do_sample=False)
    tokens = run_recipe("generate", model=model, ids=ids)["tokens"]
    assert expected.shape == (2, 29)
    assert torch.equal(tokens, expected)
    # The prompt; the first token; one with a cache of up to 32 places; the next, in the background.
    assert executables() in (3, 4)


def test_generate_batch():
    model = tiny_text.gpt2().eval()
    prompts = [torch.randint(0, 100, (n,)).tolist() for n in (5, 11, 8)]
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0].tolist()
        for prompt in prompts
    ]
    answers = run_recipe("generate_batch", model=model, prompts=prompts)["answers"]
    found = [[*answer.prompt_ids, *answer.generated_tokens] for answer in answers.values()]
    assert sorted(found) == sorted(expected)
    assert not counters["graph_break"]


def test_generate_with_a_static_cache():
    model = tiny_text.gpt2().eval()
    ids = torch.randint(0, 100, (2, 5))
    expected = model.generate(ids, max_new_tokens=8, do_sample=False)
    tokens = run_recipe("generate with a static cache", model=model, ids=ids)["tokens"]
    assert expected.shape == (2, 13)
    assert torch.equal(tokens, expected)
    assert executables() == 2  # the prompt, and a token


def test_pipeline():
    model = tiny_text.bert(transformers.BertForSequenceClassification)
    tokenizer = tiny_text.tokenizer()
    eager = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
    expected = eager(["a good film", "bad film"])
    answers = run_recipe("pipeline", model=model, tokenizer=tokenizer)["answers"]
    assert [a["label"] for a in answers] == [a["label"] for a in expected]
    scores = [[a["score"] for a in found] for found in (answers, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert counters["stats"]["unique_graphs"] == 1
