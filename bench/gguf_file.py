"""GGUF files of transformers' language models: what llama.cpp and `from_pretrained` read.

It needs `pip install gguf`. There is no tokenizer in the file, so texts are tokens.
"""

import pathlib
from typing import Any

import torch

# What a kind calls itself; matrices have it, and vectors are float32.
KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
_ARCHITECTURES = {"llama": "LLAMA", "qwen3": "QWEN3", "gpt2": "GPT2"}


def write(model: torch.nn.Module, path: pathlib.Path, kind: str) -> None:
    """Write a GGUF file of a model's weights.

    Args:
        model: a Llama, Qwen3 or GPT-2 of transformers with a head for the next token.
        path: where the file is written.
        kind: a name of `KINDS`: "int8" has 8 bits a weight and a scale for 32, "int4" 4 bits.

    Raises:
        ValueError: the kind is not known, or the model is of another architecture.
    """
    import gguf

    config: Any = model.config
    if kind not in KINDS or config.model_type not in _ARCHITECTURES:
        raise ValueError(
            f"no GGUF file of a {config.model_type} in {kind}: take one of "
            f"{', '.join(_ARCHITECTURES)} in one of {', '.join(KINDS)}"
        )
    architecture = gguf.MODEL_ARCH[_ARCHITECTURES[config.model_type]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_sizes(writer, config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tensors = {name: p.detach().float() for name, p in model.named_parameters()}
    # An embedding that is the head as well stands there twice: it is not quantized as a table.
    tensors["lm_head.weight"] = model.lm_head.weight.detach().float()
    for name, tensor in tensors.items():
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise ValueError(f"GGUF has no name for {name} of a {config.model_type}")
        narrow = gguf.GGMLQuantizationType[KINDS[kind]]
        table = known.startswith(("token_embd", "position_embd"))
        if tensor.dim() < 2 or (table and narrow in (gguf.GGMLQuantizationType.Q8_0,
                                                     gguf.GGMLQuantizationType.Q4_0)):  # fmt: skip
            narrow = gguf.GGMLQuantizationType.F32
        data = gguf.quants.quantize(_ordered(tensor, known, config).numpy(), narrow)
        writer.add_tensor(known, data, raw_dtype=narrow)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _ordered(tensor: torch.Tensor, name: str, config: Any) -> torch.Tensor:
    """A weight as llama.cpp reads it."""
    if config.model_type == "gpt2" and tensor.dim() == 2 and name.startswith("blk."):
        tensor = tensor.T  # GPT-2 has products of other orientation than `Linear`
    if config.model_type == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
        # Of a head, what is rotated together stands side by side there, half a head apart here.
        half = config.head_dim // 2
        tensor = tensor.view(-1, 2, half, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)
    return tensor.contiguous()


def _add_sizes(writer: Any, config: Any) -> None:
    heads = config.num_attention_heads
    writer.add_name(f"{config.model_type} of random weights")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    # transformers counts these where it reads no size, as of GPT-2.
    writer.add_token_list([f"<{token}>" for token in range(config.vocab_size)])
    if config.model_type == "gpt2":
        writer.add_feed_forward_length(config.n_inner or 4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return
    size = config.head_dim
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for add in (writer.add_rope_dimension_count, writer.add_key_length, writer.add_value_length):
        add(size)
