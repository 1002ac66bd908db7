"""Quantized weights: tokens a second of a small Llama, and perplexities beside torchao's own.

`python -m bench.quantized` decodes as `bench.decode` does, batch 1, with torchao's quantizations of
all linear layers. Then a Llama over bytes is trained for `--steps` on README.md, quantized, and its
perplexity on the last part of the text compared: that of torchao in eager, and that of openxla.

Speed is told beside how far a token's logits are from eager's, as a part of the largest of them:
Inductor of torch 2.13 is far off with dynamic activations, on an Intel Xeon with AVX-512.
"""

import argparse
import copy
import logging
import math
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bench.decode import BACKENDS, PROMPT, Decoder
from bench.timing import interleave, positive, set_threads

TEXT = pathlib.Path(__file__).parent.parent / "README.md"
SIZES = {
    "full": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 8,
             "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 32000},
    "tiny": {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256},
}  # fmt: skip
NONE = "none"
LENGTH, BATCH = 128, 8  # of the pieces of text that the model over bytes is trained on


def quantizations() -> dict[str, Callable[[], Any]]:
    """The configurations of torchao by their names in the tables."""
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
    from torchao.quantization import (
        Float8WeightOnlyConfig,
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
    )

    return {
        "int8": Int8WeightOnlyConfig,
        "int8-dynamic": Int8DynamicActivationInt8WeightConfig,
        "int4": lambda: PrototypeInt4WeightOnlyConfig(set_inductor_config=False),
        "float8": Float8WeightOnlyConfig,
    }


def quantized(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """A copy of a model with its linear layers quantized."""
    from torchao.quantization import quantize_

    made = copy.deepcopy(model)
    if name != NONE:
        quantize_(made, quantizations()[name]())
    return made


def llama(size: str) -> torch.nn.Module:
    """A Llama of random weights."""
    import transformers

    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES[size])).eval()


def decoded(
    model: torch.nn.Module, options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float]]:
    """By backend, tokens a second in interleaved rounds, and how far the first logits are off."""
    prompt = torch.randint(0, 99, (PROMPT,), generator=torch.Generator().manual_seed(0))
    expected = model(input_ids=prompt[None, :1], use_cache=False).logits.float()
    calls: dict[str, Callable[[], object]] = {}
    off = {}
    for backend in options.backends:
        torch._dynamo.reset()
        decoder = Decoder(model, backend, max(options.cache, PROMPT + options.tokens))
        logits = decoder.logits(prompt[:1, None], torch.tensor([0])).float()
        off[backend] = float((logits - expected).abs().max() / expected.abs().max())
        decoder.decode(prompt, options.tokens)
        calls[backend] = lambda decoder=decoder: decoder.decode(prompt, options.tokens)
    seconds = interleave(calls, rounds=options.rounds, seconds=0.0)
    return {b: (PROMPT + options.tokens - 1) / s for b, s in seconds.items()}, off


def trained(steps: int) -> tuple[torch.nn.Module, torch.Tensor]:
    """A Llama over bytes, and the part of the text that it was not trained on, [pieces, LENGTH]."""
    text = torch.tensor(list(TEXT.read_bytes()))
    pieces = text[: len(text) // LENGTH * LENGTH].view(-1, LENGTH)
    last = len(pieces) // 8
    model, generator = llama("tiny").train(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        chosen = torch.randint(0, len(pieces) - last, (BATCH,), generator=generator)
        model(input_ids=pieces[chosen], labels=pieces[chosen], use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval(), pieces[-last:]


def perplexity(model: torch.nn.Module, pieces: torch.Tensor, backend: str) -> float:
    """The perplexity of a model on pieces of text."""
    torch._dynamo.reset()
    run = model if backend == "eager" else torch.compile(model, backend=backend, dynamic=False)
    logits = [
        run(input_ids=piece[None], use_cache=False).logits[0, :-1].float() for piece in pieces
    ]
    losses = torch.nn.functional.cross_entropy(torch.cat(logits), pieces[:, 1:].reshape(-1))
    return math.exp(float(losses))


def table(title: str, columns: Sequence[str]) -> Table:
    """An empty table."""
    made = Table(title=title)
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i > 1 else "left")
    return made


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [NONE, *quantizations()]
    parser.add_argument("--quantizations", nargs="+", choices=names, default=names[:4])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS))
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--tokens", type=positive, default=8)
    parser.add_argument("--cache", type=positive, default=256, help="places for tokens")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of training; 0 for no perplexity")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    set_threads(options.threads)
    cases = [(d, q) for d in options.dtypes for q in options.quantizations]
    speeds = table(
        f"decoding, batch 1, {options.threads} torch threads: tokens/s",
        ("activations", "weights", *options.backends, "logits off by"),
    )
    perplexities = table("perplexity on README.md", ("activations", "weights", "eager", "openxla"))
    with torch.no_grad():
        for dtype, name in cases:
            model = quantized(llama(options.size).to(getattr(torch, dtype)), name)
            found, off = decoded(model, options)
            speed = (f"{found[b]:.1f}" for b in options.backends)
            row = dtype, name, *speed, " / ".join(f"{off[b]:.2g}" for b in options.backends)
            print(*row, flush=True)  # it takes minutes
            speeds.add_row(*row)
    Console().print(speeds)
    if not options.steps:
        return
    model, pieces = trained(options.steps)
    with torch.no_grad():
        for dtype, name in cases:
            made = quantized(copy.deepcopy(model).to(getattr(torch, dtype)), name)
            both = (perplexity(made, pieces, b) for b in ("eager", "openxla"))
            perplexities.add_row(dtype, name, *(f"{p:.4f}" for p in both))
    Console().print(perplexities)


if __name__ == "__main__":
    main()
