"""`generate` of transformers with a cache that grows: eager's tokens, few executables.

Cold: nothing is cached on disk, and Dynamo starts anew in each test.
"""

import pytest
import torch
import transformers

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 200}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SMALL))


def t5():
    config = transformers.T5Config(
        d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=200
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config)


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=200,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50,
        num_mel_bins=20,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return transformers.WhisperForConditionalGeneration(config)


@pytest.mark.slow
@pytest.mark.usefixtures("others_may_warn")
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize(
    ("make", "bound"), [(llama, 4), (qwen2, 4), (t5, 6), (whisper, 6)], ids=lambda v: str(v)
)
def test_tokens_are_those_of_eager(make, bound, sampled, executables):
    model = make().eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    given = torch.randn(2, 20, 100) if make is whisper else torch.randint(3, 200, (2, 11))

    def generate():
        torch.manual_seed(0)
        return model.generate(given, max_new_tokens=24, do_sample=sampled)

    expected = generate()
    model.compile(backend="openxla")
    assert torch.equal(generate(), expected)
    assert executables() <= bound
    compiled = executables()
    assert torch.equal(generate(), expected)
    assert executables() == compiled
