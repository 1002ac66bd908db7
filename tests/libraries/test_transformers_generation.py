"""`generate` of transformers where transformers itself compiles the forward, and where users do.

The suite of transformers generates twice with each of its models, from other prompts of one size,
with a static cache and a forward that is compiled whole: nothing is compiled again, and the scores
are those of eager with a growing cache. It does so for Inductor.
"""

from typing import Any

import pytest
import torch
import transformers

from bench.models import MODELS, build
from xla_dynamo.variants import background

# Kinds of models: decoders of several attentions, experts, latent attention, a state space, texts
# and sounds to texts.
KINDS = (
    "gpt2", "llama", "bloom", "qwen3_moe", "deepseek_v3", "mamba2", "t5", "bart", "whisper",
)  # fmt: skip
# Each second layer, or each one, has a window of five tokens.
WINDOWED = ("mistral", "gemma2", "gpt_oss")
SETTINGS = {
    "do_sample": False,
    "use_cache": True,
    "return_dict_in_generate": True,
    "output_scores": True,
}


def model_of(name: str) -> Any:
    model: Any = build(name, "tiny")
    model.config.use_cache = True
    of_tokens = model.generation_config
    of_tokens.eos_token_id = of_tokens.forced_eos_token_id = None
    of_tokens.bos_token_id, of_tokens.pad_token_id = 1, 0
    if model.config.is_encoder_decoder:
        of_tokens.decoder_start_token_id = 2
    return model


def prompts_of(name: str, model: Any) -> list[dict[str, Any]]:
    """Two batches of one size; the first text of each is shorter, and begins with padding."""
    batches = []
    for _ in range(2):
        batch = MODELS[name].inputs("tiny", 2)
        for key in ("decoder_input_ids", "use_cache"):
            batch.pop(key, None)
        if "attention_mask" in batch:
            batch["attention_mask"][0, :3] = 0
        batches.append(batch)
    return batches


def in_place_of_inductor(**settings: Any) -> transformers.CompileConfig:
    """What transformers compiles with; by itself, it does so only on accelerators."""
    config = transformers.CompileConfig(backend="openxla", mode=None, dynamic=False, **settings)
    config._compile_all_devices = True
    return config


def assert_same_outputs(actual: Any, expected: Any) -> None:
    assert torch.equal(actual.sequences, expected.sequences)
    assert actual.keys() == expected.keys()
    for name in expected.keys() - {"sequences", "past_key_values", "cache"}:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.every(3)
@pytest.mark.parametrize("name", KINDS)
def test_the_forward_that_transformers_compiles(name, traces, executables):
    model = model_of(name)
    prompts = prompts_of(name, model)
    expected = [model.generate(**p, **SETTINGS, max_new_tokens=5) for p in prompts]
    how = {"cache_implementation": "static", "compile_config": in_place_of_inductor(fullgraph=True)}
    for prompt, outputs in zip(prompts, expected, strict=True):
        found = model.generate(**prompt, **SETTINGS, max_new_tokens=5, **how)
        assert_same_outputs(found, outputs)
    # The prompts run in eager.
    assert traces() == 1
    assert executables() == 1


@pytest.mark.every(3)
@pytest.mark.parametrize("name", ["llama", "t5", "gemma2"])
def test_all_that_a_forward_returns(name, traces):
    """Attention weights, hidden states and logits of each token."""
    model = model_of(name)
    model.set_attn_implementation("eager")
    (prompt, _) = prompts_of(name, model)
    everything = {"output_attentions": True, "output_hidden_states": True, "output_logits": True}
    settings = {**SETTINGS, **everything, "max_new_tokens": 4, "cache_implementation": "static"}
    expected = model.generate(**prompt, **settings)
    found = model.generate(**prompt, **settings, compile_config=in_place_of_inductor())
    assert_same_outputs(found, expected)
    assert traces() > 0


@pytest.mark.every(3)
@pytest.mark.parametrize("name", WINDOWED)
def test_a_static_cache_behind_a_window(name, traces, executables):
    """The cache counts tokens until the window is full, and Dynamo traces each number."""
    model = model_of(name)
    (prompt, _) = prompts_of(name, model)
    expected = model.generate(**prompt, **SETTINGS, max_new_tokens=4)
    how = {"cache_implementation": "static", "compile_config": in_place_of_inductor(fullgraph=True)}
    found = model.generate(**prompt, **SETTINGS, max_new_tokens=4, **how)
    assert_same_outputs(found, expected)
    assert executables() == traces() <= 3


@pytest.mark.every(3)
@pytest.mark.parametrize("name", WINDOWED)
def test_a_growing_cache_behind_a_window(name, traces, executables):
    """The window begins where the length tells, and one executable serves many lengths."""
    model = model_of(name)
    (prompt, _) = prompts_of(name, model)
    count = 16
    expected = model.generate(**prompt, **SETTINGS, max_new_tokens=count)
    model.compile(backend="openxla", fullgraph=True)
    found = model.generate(**prompt, **SETTINGS, max_new_tokens=count)
    assert_same_outputs(found, expected)
    background.wait()
    assert traces() == 3  # the prompt, the first token, later ones
    assert executables() <= 6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "mamba", "bart", "moonshine"])
def test_beams_with_a_growing_cache(name, traces):
    """The beams that go on are chosen in eager, and the cache is put in their order."""
    model = model_of(name)
    (prompt, _) = prompts_of(name, model)
    settings = {**SETTINGS, "num_beams": 3, "max_new_tokens": 6}
    expected = model.generate(**prompt, **settings)
    model.compile(backend="openxla", fullgraph=True)
    assert_same_outputs(model.generate(**prompt, **settings), expected)
    assert 0 < traces() <= 4
