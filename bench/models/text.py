"""Encoders of text, from their configurations in `transformers`."""

import functools
from typing import Any

import torch

from bench.models.inputs import sized, tokens
from bench.models.registry import register

_register = functools.partial(register, family="text")

TINY_TEXT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99,
    "intermediate_size": 37, "max_position_embeddings": 64,
}  # fmt: skip
# What "base" means since BERT, for configurations whose defaults are larger.
_BASE = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_DEBERTA = {
    "relative_attention": True, "position_buckets": 256, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
}  # fmt: skip

_register("bert", "transformers.BertForMaskedLM", {}, TINY_TEXT, tokens())
_register("roberta", "transformers.RobertaForMaskedLM", {}, TINY_TEXT, tokens())
_register(
    "distilbert", "transformers.DistilBertForMaskedLM", {},
    {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}, tokens(),
)  # fmt: skip
_register(
    "albert", "transformers.AlbertForMaskedLM", _BASE, {**TINY_TEXT, "embedding_size": 16},
    tokens(),
)  # fmt: skip
_register(
    "electra", "transformers.ElectraForMaskedLM", {}, {**TINY_TEXT, "embedding_size": 16}, tokens()
)
_register(  # DeBERTa v3 base
    "deberta_v2", "transformers.DebertaV2ForMaskedLM",
    {**_BASE, **_DEBERTA, "num_hidden_layers": 12},
    {**TINY_TEXT, **_DEBERTA, "position_buckets": 4}, tokens(), batch=2,
)  # fmt: skip
_register("mpnet", "transformers.MPNetForMaskedLM", {}, TINY_TEXT, tokens())
_register(
    "squeezebert", "transformers.SqueezeBertForMaskedLM", {},
    {**TINY_TEXT, "embedding_size": 32, "intermediate_size": 64}, tokens(),
)  # fmt: skip
_register(
    "mobilebert", "transformers.MobileBertForMaskedLM", {},
    {**TINY_TEXT, "embedding_size": 32, "intra_bottleneck_size": 16}, tokens(),
)  # fmt: skip
_register(  # XLNet base
    "xlnet", "transformers.XLNetLMHeadModel",
    {"d_model": 768, "n_layer": 12, "n_head": 12, "d_inner": 3072, "use_mems_eval": False},
    {
        "vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37,
        "use_mems_eval": False,
    },
    tokens(), batch=2,
)  # fmt: skip
_register(  # its local attention sees 64 tokens to each side, so the sequence is longer
    "modernbert", "transformers.ModernBertForMaskedLM", {},
    {
        **TINY_TEXT, "local_attention": 8, "num_hidden_layers": 3, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
    },
    tokens(256, 20), batch=2,
)  # fmt: skip
_register(  # Fourier transforms in place of attention
    "fnet", "transformers.FNetForMaskedLM", {}, TINY_TEXT, tokens(mask=False)
)
_register(
    "roformer", "transformers.RoFormerForMaskedLM", {}, {**TINY_TEXT, "embedding_size": 16},
    tokens(),
)  # fmt: skip
_register(
    "convbert", "transformers.ConvBertForMaskedLM", {}, {**TINY_TEXT, "embedding_size": 16},
    tokens(),
)  # fmt: skip
_register(
    "funnel", "transformers.FunnelForMaskedLM", {},
    {
        "vocab_size": 99, "block_sizes": [1, 1], "num_decoder_layers": 1, "d_model": 32,
        "n_head": 4, "d_head": 8, "d_inner": 37,
    },
    tokens(), batch=2,
)  # fmt: skip


def _words_on_a_page(batch: int, length: int) -> dict[str, torch.Tensor]:
    corner = torch.randint(0, 500, (batch, length, 2))
    extent = torch.randint(1, 500, (batch, length, 2))
    return {
        "input_ids": torch.randint(0, 99, (batch, length)),
        "bbox": torch.cat([corner, corner + extent], -1),
    }


_register(
    "layoutlm", "transformers.LayoutLMForMaskedLM", {}, TINY_TEXT,
    sized(128, 12, _words_on_a_page),
)  # fmt: skip
