"""The load on a server is measured, and its answers are checked."""

import sys

import pytest

from bench import serve_clients, serve_load
from bench.serve_clients import Asked, Load


def test_percentiles_are_milliseconds():
    samples = [n / 1000 for n in range(100, 0, -1)]
    assert serve_clients.percentile(samples, 50) == "51.0"
    assert serve_clients.percentile(samples, 99) == "100.0"
    assert serve_clients.percentile([], 50) == "-"


@pytest.mark.usefixtures("others_may_warn")
def test_what_is_wrong_with_answers(tmp_path):
    """Each against `generate` alone: its beginning, another prompt's, or neither."""
    import transformers

    from xla_dynamo.serving.tiny_model import write_tiny_model

    write_tiny_model(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    prompts = ["once", "twice"]
    given = [tokenizer(prompt, return_tensors="pt") for prompt in prompts]
    whole = [model.generate(**ids, max_new_tokens=20, do_sample=False)[0] for ids in given]
    first, second = (
        tokenizer.decode(out[ids["input_ids"].shape[1] :], skip_special_tokens=True)
        for out, ids in zip(whole, given, strict=True)
    )
    load = Load(0, prompts, [20])
    load.answers = {
        (Asked(0, 20, ""), first),
        (Asked(0, 9, ""), first[:9]),
        (Asked(0, 20, first[5]), first.partition(first[5])[0]),
        (Asked(1, 20, ""), second[:7]),
        (Asked(1, 9, ""), first[:9]),
        (Asked(0, 20, ""), "something else"),
    }
    found = serve_clients.wrong([load], tmp_path)
    assert {kind: len(texts) for kind, texts in found.items()} == {
        "truncated": 1,
        "mixed up": 1,
        "wrong": 1,
    }


def test_what_fits_the_schema():
    assert serve_clients._fits('{"kind":"cat","age":-3}')
    for text in ('{"kind":"cat"', '{"kind":"cow","age":1}', '{"age":1}', "[]"):
        assert not serve_clients._fits(text)


def test_a_picture_of_a_sweep(tmp_path):
    loads = {n: Load(0, [], []) for n in (1, 2)}
    for clients, load in loads.items():
        load.tokens, load.seconds = 100 * clients, 1.0
        load.first, load.between = [0.1 * clients], [0.01]
    serve_load.draw(loads, tmp_path / "load.svg")
    assert "tokens a second" in (tmp_path / "load.svg").read_text()


@pytest.mark.slow  # starts a server
@pytest.mark.usefixtures("others_may_warn")
@pytest.mark.parametrize("end", ["after", "sigterm"])
def test_a_short_load(monkeypatch, capfd, end):
    given = ["serve_load", "--seconds", "3", "--clients", "4", "--longest", "128"]
    monkeypatch.setattr(sys, "argv", [*given, "--requests", "3", "--end", end])
    assert serve_load.main() == 0
    said = capfd.readouterr().out
    assert "compilations: 0" in said
    assert "lost: 0, truncated: 0, mixed up: 0, wrong: 0" in said
    assert "status 0" in said
