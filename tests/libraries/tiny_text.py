"""A tokenizer of eight words and the models that read them: nothing is downloaded."""

import tokenizers
import torch
import transformers

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film"]


def tokenizer():
    words = {word: index for index, word in enumerate(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def bert(model_class):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    return model_class(config).eval()


def gpt2():
    torch.manual_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    tokens = {"vocab_size": 100, "bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=4, n_positions=64, **tokens, **dropout
    )
    return transformers.GPT2LMHeadModel(config)
