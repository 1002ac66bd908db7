"""Text by a language model, as in PyTorch/XLA's recipes for Llama, of small random weights.

    python -m docs.examples.migration.generation --tokens 16

There a static cache and `torch_xla.sync()` after each token keep one graph. Here
`xla_dynamo.generate` takes what transformers' `model.generate` takes, and has one program for each
size of batch. `python -m xla_dynamo serve FOLDER` is a server of the same.
"""

import argparse
import time
from collections.abc import Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import xla_dynamo


def main(arguments: Sequence[str] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode twice; the tokens of eager and those of the compiled programs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args(arguments)
    torch.manual_seed(42)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.randint(512, (2, 8))
    given = {
        "max_new_tokens": options.tokens,
        "do_sample": False,
        "attention_mask": torch.ones_like(prompt),
        "pad_token_id": 0,
    }
    wanted = model.generate(prompt, **given)
    for name in ("first", "second"):
        start = time.perf_counter()
        found = xla_dynamo.generate(model, prompt, **given)
        rate = options.tokens / (time.perf_counter() - start)
        print(f"the {name} text: {rate:.0f} tokens/s for each of {len(prompt)}")
    return wanted, found


if __name__ == "__main__":
    main()
