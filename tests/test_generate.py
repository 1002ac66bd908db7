"""`xla_dynamo.generate`: the tokens of transformers' own, over one program a step."""

import pytest
import torch
import transformers

import xla_dynamo
from xla_dynamo.runtime.cpu import torch_shares

pytestmark = [pytest.mark.usefixtures("others_may_warn", "cold")]

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "max_position_embeddings": 512,
}


def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).eval()


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)
    return transformers.GPT2LMHeadModel(config).eval()


def sliding():
    torch.manual_seed(0)
    layers = ["full_attention", "sliding_attention"]
    more = {"sliding_window": 8, "use_sliding_window": True, "layer_types": layers}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **more)).eval()


def prompt(batch=1, length=5):
    return torch.randint(5, 64, (batch, length), generator=torch.Generator().manual_seed(1))


def check(model, *args, **kwargs):
    """The tokens are those of transformers; returns them."""
    kwargs = {"pad_token_id": 0, "eos_token_id": None, **kwargs}
    torch.manual_seed(3)
    expected = model.generate(*args, **kwargs)
    torch.manual_seed(3)
    actual = xla_dynamo.generate(model, *args, **kwargs)
    assert torch.equal(actual, expected)
    return actual


@pytest.mark.every(2)
@pytest.mark.parametrize("make", [llama, gpt2, sliding])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_likeliest_tokens(make, batch):
    assert check(make(), prompt(batch), max_new_tokens=20).shape == (batch, 25)


def encoder_decoder():
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2}
    config = transformers.T5Config(**sizes, num_heads=4, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config).eval()


def recurrent():
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    return transformers.MambaForCausalLM(transformers.MambaConfig(**sizes)).eval()


def experts():
    config = transformers.MixtralConfig(**SIZES, num_local_experts=4)
    return transformers.MixtralForCausalLM(config).eval()


@pytest.mark.every(3)
def test_the_cache_of_a_decoder_has_its_own_tokens_alone():
    model = encoder_decoder()
    check(model, prompt(length=200), max_new_tokens=8)
    assert model._previous_max_cache_length == 64, "and no place for the 200 of the encoder"
    assert (
        check(model, prompt(), decoder_input_ids=prompt(length=40), max_new_tokens=8).shape[1] == 49
    )


@pytest.mark.parametrize("make", [encoder_decoder, recurrent, experts])
def test_other_architectures(make):
    torch.manual_seed(0)
    check(make(), prompt(2), max_new_tokens=9)


def test_drawn_tokens_are_the_same_of_a_seed():
    first = check(llama(), prompt(2), max_new_tokens=9, do_sample=True, temperature=2.0, top_k=20)
    torch.manual_seed(4)
    other = llama().generate(prompt(2), max_new_tokens=9, do_sample=True, pad_token_id=0)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_beams": 3, "max_new_tokens": 9},
        {"num_return_sequences": 2, "do_sample": True, "max_new_tokens": 9},
        {"repetition_penalty": 1.5, "max_new_tokens": 9},
        {"max_length": 12},
        {"max_new_tokens": 1},
        {"prefill_chunk_size": 2, "max_new_tokens": 9},
        {"generation_config": transformers.GenerationConfig(max_new_tokens=9)},
    ],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_settings_of_transformers(kwargs):
    check(llama(), prompt(2), **kwargs)


def test_prompts_of_several_lengths_in_a_batch():
    """Those that are shorter begin with padding, which the mask hides."""
    ids, mask = prompt(3, 9), torch.ones(3, 9, dtype=torch.long)
    for row, padding in enumerate((0, 4, 7)):
        ids[row, :padding], mask[row, :padding] = 0, 0
    check(llama(), ids, attention_mask=mask, max_new_tokens=12)


def test_the_end_of_a_text():
    model = llama()
    free = check(model, prompt(), max_new_tokens=20)
    end = int(free[0, 12])
    assert check(model, prompt(), max_new_tokens=20, eos_token_id=end).shape[1] <= 13


def test_one_program_serves_texts_up_to_a_number_of_places(executables):
    """From 64 places on there is one for each power of two."""
    model = llama()
    check(model, prompt(length=5), max_new_tokens=6)
    once = executables()
    assert once > 0
    for length, tokens in ((9, 3), (30, 30), (2, 62)):
        check(model, prompt(length=length), max_new_tokens=tokens)
    assert executables() == once
    check(model, prompt(length=60), max_new_tokens=6)
    assert executables() == 2 * once


def test_the_cache_is_changed_in_place():
    """What a call returns holds the cache, whose memory the programs have written."""
    kwargs = {"return_dict_in_generate": True, "pad_token_id": 0, "eos_token_id": None}
    out = xla_dynamo.generate(llama(), prompt(), max_new_tokens=4, **kwargs)
    expected = llama().generate(prompt(), max_new_tokens=4, **kwargs)
    for layer, wanted in zip(
        out.past_key_values.layers, expected.past_key_values.layers, strict=True
    ):
        torch.testing.assert_close(layer.keys[:, :, :8], wanted.keys, rtol=1e-4, atol=1e-5)


def test_a_streamer_gets_each_token():
    got = []

    class Streamer(transformers.generation.BaseStreamer):
        def put(self, value):
            got.append(value)

        def end(self):
            got.append(None)

    tokens = xla_dynamo.generate(
        llama(), prompt(), max_new_tokens=4, streamer=Streamer(), pad_token_id=0, eos_token_id=None
    )
    assert got[-1] is None
    assert torch.equal(torch.cat([got[0][0], *got[1:-1]]), tokens[0])


def test_the_models_settings_stay_as_they_were():
    model = llama()
    before = model.generation_config.to_dict()
    check(model, prompt(), max_new_tokens=3)
    assert model.generation_config.to_dict() == before


def test_options_are_the_backends():
    check(llama(), prompt(), max_new_tokens=4)
    with pytest.raises(Exception, match="no_such_option"):
        xla_dynamo.generate(llama(), prompt(), max_new_tokens=4, options={"no_such_option": 1})


@pytest.mark.parametrize(
    "kwargs",
    [
        {"assistant_early_exit": 1},
        {"use_mtp": True},
        {"cache_implementation": "dynamic"},
        {"use_cache": False},
        {"past_key_values": "a cache"},
    ],
    ids=lambda kwargs: next(iter(kwargs)),
)
def test_what_has_a_cache_of_its_own_is_refused(kwargs):
    with pytest.raises(ValueError, match=f"was given {next(iter(kwargs))}.* model.generate"):
        xla_dynamo.generate(llama(), prompt(), max_new_tokens=4, **kwargs)


def test_other_models_are_refused():
    with pytest.raises(TypeError, match="was given a Linear"):
        xla_dynamo.generate(torch.nn.Linear(2, 2), prompt())


@pytest.mark.skipif(not torch_shares.can_share(), reason="torch has other threads here")
def test_torchs_threads_between_steps():
    """One, unless a function of somebody's may need more; all are there again behind the text."""
    model, seen = llama(), []
    update = model._update_model_kwargs_for_generation

    def watched(*args, **kwargs):
        seen.append(torch.get_num_threads())
        return update(*args, **kwargs)

    model._update_model_kwargs_for_generation = watched
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for more, expected in (({}, [3, 1, 1, 1]), ({"logits_processor": [_as_it_is]}, [3] * 4)):
            seen.clear()
            xla_dynamo.generate(model, prompt(), min_new_tokens=4, max_new_tokens=4, **more)
            assert seen == expected
            assert torch.get_num_threads() == 3
        assert "get_compiled_call" not in vars(model)
    finally:
        torch.set_num_threads(before)


def _as_it_is(ids, scores):
    return scores
