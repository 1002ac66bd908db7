"""A model is prepared in this process: its sizes, its answers, and what is wrong."""

import pytest
import torch
import transformers

from tests.serving.running import Alone
from xla_dynamo.command_line import main
from xla_dynamo.errors import OptionError
from xla_dynamo.serving import Sizes, prepare
from xla_dynamo.serving.loading import load
from xla_dynamo.serving.sizes import bound_of


def generated(prepared, prompts, tokens):
    """The tokens that a prepared model generates behind prompts, all at once."""
    manager = prepared.manager
    names = [manager.add_request(ids, max_new_tokens=tokens) for ids in prompts]
    found = {}
    while len(found) < len(names):
        result = manager.get_result(timeout=60)
        assert result is not None
        assert result.error is None
        found[result.request_id] = result.generated_tokens
    return [found[name] for name in names]


def test_sliding_windows_and_full_attention_in_one_model():
    """A model of another family; nothing is compiled after."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=2,
        vocab_size=64,
        max_position_embeddings=64,
        sliding_window=8,
        use_sliding_window=True,
        layer_types=["full_attention", "sliding_attention"],
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.Qwen2ForCausalLM(config).eval()
    prompts = [torch.randint(5, 64, (n,)).tolist() for n in (3, 30, 11)]
    expected = [
        model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
        for ids in prompts
    ]
    prepared = prepare(model, Sizes(64, 2, 8, 128, page=16))
    assert prepared.executables == 4
    prepared.manager.start()
    try:
        found = generated(prepared, prompts, 12)
    finally:
        prepared.manager.stop()
    assert found == [tokens.tolist() for tokens in expected]
    assert prepared.compilations() == 0


def test_one_size_of_batches(tmp_path):
    """Nothing is dynamic then, and what comes is padded to that size."""
    alone = Alone(tmp_path)
    prepared = prepare(alone.model, Sizes(30, 2, 4, 32, page=16))
    assert prepared.executables == 1
    prepared.manager.start()
    prompts = [alone.tokenizer(text)["input_ids"] for text in ("a", "some longer one")]
    try:
        found = generated(prepared, prompts, 10)
    finally:
        prepared.manager.stop()
    texts = [alone.tokenizer.decode(tokens) for tokens in found]
    like = Alone(tmp_path)
    assert texts == [like.completed(text, 10) for text in ("a", "some longer one")]
    assert prepared.compilations() == 0


def test_bounds():
    sizes = Sizes.of(transformers.LlamaConfig(max_position_embeddings=512))
    assert sizes == Sizes(512, 16, 256, 2048)
    assert sizes.token_bounds() == [4, 16, 64, 256]
    assert sizes.read_bounds(2048) == [128, 512, 2048]
    assert [bound_of(n, [2, 8, 16]) for n in (1, 2, 3, 16)] == [2, 2, 8, 16]


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((1, 4, 16, 64), "longest must be at least 2"),
        ((64, 1, 16, 64), "requests must be at least 2"),
        ((64, 16, 16, 64), "batch_tokens must be more than requests"),
        ((64, 4, 16, 63), "cache_tokens must be at least longest"),
        ((32, 4, 16, 32), "cache_tokens must be more than page"),
    ],
)
def test_sizes_that_do_not_go_together(sizes, said):
    with pytest.raises(OptionError, match=said):
        Sizes(*sizes)


def test_longer_than_the_model():
    with pytest.raises(OptionError, match="longest is 513, and the model has 512 positions"):
        Sizes.of(transformers.LlamaConfig(max_position_embeddings=512), longest=513)


def test_folders_that_are_no_models(tmp_path, capsys):
    with pytest.raises(OptionError, match="has no config"):
        load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(OptionError, match="cannot be loaded"):
        load(tmp_path)
    assert main(["serve", "--model", str(tmp_path / "none"), "--port", "0"]) == 1
    assert "has no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("quantize", ["int8", "int8-dynamic", "int4"])
def test_weights_are_quantized_by_torchao(tmp_path, quantize):
    alone = Alone(tmp_path)
    model, _ = load(tmp_path, "float32", quantize)
    weight = model.model.layers[0].mlp.up_proj.weight
    assert type(weight) is not torch.nn.Parameter
    assert weight.shape == alone.model.model.layers[0].mlp.up_proj.weight.shape


def test_a_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setattr("xla_dynamo.command_line.serve.NEEDED", ("fastapi", "no_such_package"))
    assert main(["serve"]) == 1
    said = capsys.readouterr().err
    assert "serve needs no_such_package: pip install 'xla-dynamo[serving]'" in said


def test_a_port_that_is_taken(capsys):
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--port", port]) == 1
    assert "choose another --port" in capsys.readouterr().err
