"""A model to try a server with: a tiny Llama of random weights, and a tokenizer of bytes."""

from pathlib import Path

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Logits of a random model are close to each other. This far apart, sampling keeps to few tokens.
_SPREAD = 8.0


def write_tiny_model(folder: Path, seed: int = 0) -> None:
    """Write a model that answers in printable ASCII, as `from_pretrained` reads it.

    It has 2 layers of 64, 512 positions and a token for each byte. It knows nothing, and always
    answers alike.

    Args:
        folder: where to; it is made.
        seed: of the random weights.
    """
    tokenizer = byte_tokenizer()
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=512,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config).eval()
        head = torch.randn(config.vocab_size, config.hidden_size)
    # A row of zeros has the logit 0, and of a hundred random ones some are above.
    alphabet = [*map(chr, range(32, 127)), END]
    keep = [tokenizer.convert_tokens_to_ids("Ġ" if c == " " else c) for c in alphabet]
    rows = torch.zeros_like(head)
    rows[keep] = head[keep] * (_SPREAD / config.hidden_size**0.5)
    with torch.no_grad():
        model.lm_head.weight.copy_(rows)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def byte_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token for each byte, and three more."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=BEGIN, eos_token=END, pad_token=PAD
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
