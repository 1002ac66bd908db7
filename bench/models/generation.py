"""Language models that predict the next token: decoders, mixtures of experts, state spaces.

The families that begin at billions of parameters keep their published shape and lose layers, width
or vocabulary; the comment at each says which. None returns a cache: one forward is a whole prompt.
"""

import functools
from typing import Any

from bench.models.inputs import tokens
from bench.models.registry import register
from bench.models.text import TINY_TEXT

_register = functools.partial(register, family="generation")

_NO_CACHE = {"use_cache": False}
_TINY: dict[str, Any] = {**TINY_TEXT, "num_key_value_heads": 2, **_NO_CACHE}
# Llama's shape at a size of its own: 8 layers of width 512.
_SMALL: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 32000, **_NO_CACHE,
}  # fmt: skip
_ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

_register(
    "gpt2", "transformers.GPT2LMHeadModel", {"use_cache": False},
    {
        "vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
    },
    tokens(),
)  # fmt: skip
_register("llama", "transformers.LlamaForCausalLM", _SMALL, _TINY, tokens())
_register(  # 4 layers of width 256, 8 experts
    "mixtral", "transformers.MixtralForCausalLM",
    {**_SMALL, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4},
    {**_TINY, "intermediate_size": 48, "num_local_experts": 4}, tokens(),
)  # fmt: skip
_register(  # GPT-Neo 125M
    "gpt_neo", "transformers.GPTNeoForCausalLM",
    {
        "hidden_size": 768, "num_layers": 12, "num_heads": 12,
        "attention_types": [[["global", "local"], 6]], **_NO_CACHE,
    },
    {
        "hidden_size": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 99,
        "attention_types": [[["global", "local"], 1]], "window_size": 7,
        "max_position_embeddings": 64, **_NO_CACHE,
    },
    tokens(), batch=2,
)  # fmt: skip
_register(  # Pythia 160M
    "gpt_neox", "transformers.GPTNeoXForCausalLM",
    {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072, **_NO_CACHE,
    },
    {**TINY_TEXT, **_NO_CACHE}, tokens(), batch=2,
)  # fmt: skip
_register(  # OPT 125M
    "opt", "transformers.OPTForCausalLM", _NO_CACHE,
    {**TINY_TEXT, "ffn_dim": 37, "word_embed_proj_dim": 16, **_ENDS, **_NO_CACHE}, tokens(),
    batch=2,
)  # fmt: skip
_register(  # BLOOM 560M with 12 of its 24 layers and an eighth of its vocabulary
    "bloom", "transformers.BloomForCausalLM",
    {"hidden_size": 1024, "n_layer": 12, "n_head": 16, "vocab_size": 31360, **_NO_CACHE},
    {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 99, **_NO_CACHE}, tokens(),
    batch=1,
)  # fmt: skip
_register(  # 4 layers of a quarter of Falcon 7B's width: 16 query heads share one key and value
    "falcon", "transformers.FalconForCausalLM",
    {"hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, **_NO_CACHE},
    {**TINY_TEXT, "ffn_hidden_size": 37, **_NO_CACHE}, tokens(), batch=2,
)  # fmt: skip
_register(  # 4 of the 24 layers of Phi 1
    "phi", "transformers.PhiForCausalLM", {"num_hidden_layers": 4, **_NO_CACHE}, _TINY, tokens(),
    batch=1,
)  # fmt: skip
_register(  # Qwen2 0.5B with 12 of its 24 layers and a fifth of its vocabulary
    "qwen2", "transformers.Qwen2ForCausalLM",
    {
        "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 12,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 30000,
        "tie_word_embeddings": True, **_NO_CACHE,
    },
    _TINY, tokens(), batch=2,
)  # fmt: skip
_register(  # at the small shape: normalized queries and keys, heads wider than their share
    "qwen3", "transformers.Qwen3ForCausalLM", {**_SMALL, "head_dim": 128},
    {**_TINY, "head_dim": 16}, tokens(),
)  # fmt: skip
_register(  # at the small shape: soft caps, every other layer sees a window
    "gemma2", "transformers.Gemma2ForCausalLM", {**_SMALL, "head_dim": 64, "sliding_window": 64},
    {**_TINY, "head_dim": 16, "sliding_window": 5}, tokens(),
)  # fmt: skip
_register(  # at the small shape: a window, and fewer keys than queries
    "mistral", "transformers.MistralForCausalLM",
    {**_SMALL, "head_dim": 64, "sliding_window": 64}, {**_TINY, "head_dim": 8, "sliding_window": 5},
    tokens(),
)  # fmt: skip
_register(  # at the small shape: norms after each block
    "olmo2", "transformers.Olmo2ForCausalLM", _SMALL, {**_TINY, **_ENDS}, tokens()
)
_register(  # at the small shape with 4 layers: 16 experts, 4 a token
    "qwen3_moe", "transformers.Qwen3MoeForCausalLM",
    {
        **_SMALL, "num_hidden_layers": 4, "num_experts": 16, "num_experts_per_tok": 4,
        "moe_intermediate_size": 256, "head_dim": 64,
    },
    {
        **_TINY, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "head_dim": 8,
    },
    tokens(), batch=2,
)  # fmt: skip
_register(  # at the small shape with 4 layers: latent attention, a dense layer, shared experts
    "deepseek_v3", "transformers.DeepseekV3ForCausalLM",
    {
        **_SMALL, "num_hidden_layers": 4, "num_key_value_heads": 8, "kv_lora_rank": 128,
        "q_lora_rank": 192, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 64,
        "n_routed_experts": 16, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 4,
        "moe_intermediate_size": 256, "first_k_dense_replace": 1,
    },
    {
        **_TINY, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 24,
        "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 8,
        "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
        "first_k_dense_replace": 1,
    },
    tokens(), batch=2,
)  # fmt: skip
_register(  # at the small shape with 4 layers: attention sinks, 8 experts
    "gpt_oss", "transformers.GptOssForCausalLM",
    {
        **_SMALL, "num_hidden_layers": 4, "num_local_experts": 8, "head_dim": 64,
        "intermediate_size": 512, "sliding_window": 64,
    },
    {
        **_TINY, "intermediate_size": 48, "num_local_experts": 4, "num_experts_per_tok": 2,
        "head_dim": 8, "sliding_window": 5,
    },
    tokens(), batch=2,
)  # fmt: skip
_register(  # 4 of the 24 layers of Mamba 130M: in plain torch its scan is one step a token
    "mamba", "transformers.MambaForCausalLM", {"num_hidden_layers": 4, **_NO_CACHE},
    {
        "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, "state_size": 4,
        "time_step_rank": 4, **_NO_CACHE,
    },
    tokens(64, 6, mask=False),
)  # fmt: skip
_register(  # Mamba2 130M with 8 of its 24 layers; the scan is of chunks
    "mamba2", "transformers.Mamba2ForCausalLM",
    {
        "hidden_size": 768, "num_hidden_layers": 8, "num_heads": 24, "n_groups": 1,
        "chunk_size": 64, **_NO_CACHE,
    },
    {
        "hidden_size": 32, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 8, "n_groups": 2,
        "state_size": 4, "vocab_size": 99, "chunk_size": 4, **_ENDS, **_NO_CACHE,
    },
    tokens(128, 10, mask=False), batch=2,
)  # fmt: skip
_register(  # RWKV 169M with 4 of its 12 layers, for the reason of Mamba
    "rwkv", "transformers.RwkvForCausalLM",
    {"hidden_size": 768, "attention_hidden_size": 768, "intermediate_size": 3072,
     "num_hidden_layers": 4, **_NO_CACHE},
    {"hidden_size": 32, "attention_hidden_size": 32, "intermediate_size": 37,
     "num_hidden_layers": 2, "vocab_size": 99, **_NO_CACHE},
    tokens(64, 6, mask=False),
)  # fmt: skip


def _text_to_text(size: str, batch: int) -> dict[str, Any]:
    """Tokens to read, and eight tokens written so far about them."""
    read = tokens()(size, batch)
    return {**read, "decoder_input_ids": read["input_ids"][:, :8].contiguous(), **_NO_CACHE}


_register(
    "t5", "transformers.T5ForConditionalGeneration", {},
    {
        "vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4,
        "use_cache": False,
    },
    _text_to_text,
)  # fmt: skip
_register(  # BART base
    "bart", "transformers.BartForConditionalGeneration",
    {
        "d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_ffn_dim": 3072,
        "decoder_ffn_dim": 3072, "encoder_attention_heads": 12, "decoder_attention_heads": 12,
    },
    {
        "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_ffn_dim": 37, "decoder_ffn_dim": 37, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "max_position_embeddings": 64, "forced_eos_token_id": 2,
        "decoder_start_token_id": 2, **_ENDS,
    },
    _text_to_text, batch=2,
)  # fmt: skip
