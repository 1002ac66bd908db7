"""Text by transformers' `generate`: milliseconds a token, by precision, batch and prompt.

`python -m bench.generate` measures eager `model.generate`, the same with a static cache and with
Inductor, as transformers compiles it, `xla_dynamo.generate`, and llama.cpp where it is installed
(`pip install gguf llama-cpp-python`), with random weights, greedily. A run of one token is the
prompt's time; a token's is the difference to a run `--tokens` longer. Runs take turns, and the
fastest of each counts. "openxla-prompt" compiles the prompt too, which eager torch runs else.
Other tokens than the first's are told; in bfloat16 and with quantized weights they may differ where
two are about as likely.

With "int8" and "int4", torchao quantizes the linear layers of a model in bfloat16; llama.cpp has 8
and 4 bits a weight with a scale for 32, and multiplies them by activations of 8 bits. GPT-2 has no
linear layer but the last, so that it is left out there.
"""

import argparse
import functools
import importlib.util
import itertools
import logging
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import xla_dynamo
from bench.decode import bytes_read, read_bandwidth
from bench.llama_cpp_text import LlamaCpp
from bench.models import build
from bench.quantized import NONE, llama, quantized
from bench.timing import add_settings, positive, set_threads

MODELS = ("gpt2", "llama", "qwen3")
BACKENDS = ("eager", "inductor", "openxla", "openxla-prompt", "llama.cpp")
BY_DEFAULT = ("eager", "inductor", "openxla")
# The dtype of activations, and torchao's quantization.
PRECISIONS = {
    "float32": (torch.float32, NONE),
    "bfloat16": (torch.bfloat16, NONE),
    "int8": (torch.bfloat16, "int8"),
    "int4": (torch.bfloat16, "int4"),
}
Run = Callable[..., torch.Tensor]


def qwen3(size: str) -> Any:
    """Qwen3-0.6B's shape, cut to four layers; "tiny" is the benchmark's."""
    import transformers

    if size == "tiny":
        return build("qwen3", size)
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=4,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    return transformers.Qwen3ForCausalLM(config).eval()


def made(name: str, size: str, dtype: torch.dtype) -> Any:
    """A model that keeps a cache: GPT-2, Llama of 8 layers of 768, or Qwen3 of four layers."""
    makers = {"gpt2": lambda: build(name, size), "llama": lambda: llama(size)}
    model: Any = makers.get(name, lambda: qwen3(size))().to(dtype)
    model.config.use_cache = model.generation_config.use_cache = True
    return model


def by_inductor(model: Any) -> Run:
    """`generate` as transformers compiles it, on the CPU too."""
    from transformers import CompileConfig

    compiling = CompileConfig(mode=None)
    compiling._compile_all_devices = True
    settings = {"cache_implementation": "static", "compile_config": compiling}
    return lambda *args, **kwargs: model.generate(*args, **settings, **kwargs)


def ways_of(
    name: str, precision: str, batch: int, length: int, options: argparse.Namespace
) -> dict[str, Run]:
    """By backend what generates; each has a model of its own, with the same weights."""
    dtype, weights = PRECISIONS[precision]
    places = 1 << (length + options.tokens).bit_length()

    def model() -> Any:
        return quantized(made(name, options.size, dtype), weights)

    def by_llama_cpp() -> Run:
        whole = made(name, options.size, torch.float32)
        return LlamaCpp(whole, precision, threads=options.threads, batch=batch, places=places)

    every: dict[str, Callable[[], Run]] = {
        "eager": lambda: model().generate,
        "inductor": lambda: by_inductor(model()),
        "openxla": lambda: functools.partial(xla_dynamo.generate, model()),
        # A chunk as long as the prompt: transformers compiles it as it does a token's step.
        "openxla-prompt": lambda: functools.partial(
            xla_dynamo.generate, model(), prefill_chunk_size=length
        ),
        "llama.cpp": by_llama_cpp,
    }
    return {way: every[way]() for way in options.backends}


def measure(
    ways: dict[str, Run], ids: torch.Tensor, options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float], dict[str, float], list[str]]:
    """Seconds of a prompt, of a token and of the first run by backend, and whose tokens differ."""
    many = 1 + options.tokens

    def run(generate: Run, tokens: int) -> tuple[float, torch.Tensor]:
        start = time.perf_counter()
        exact = {"min_new_tokens": tokens, "max_new_tokens": tokens}
        found = generate(ids, do_sample=False, pad_token_id=0, **exact)
        return time.perf_counter() - start, found

    first = {way: run(generate, many)[0] for way, generate in ways.items()}
    for generate in ways.values():  # a shorter text may have a smaller cache
        run(generate, 1)
    found = {way: run(generate, many)[1] for way, generate in ways.items()}
    expected = next(iter(found.values()))
    differ = [way for way, tokens in found.items() if not torch.equal(tokens, expected)]
    short, long = (dict.fromkeys(ways, math.inf) for _ in range(2))
    for _, (way, generate) in itertools.product(range(options.rounds), ways.items()):
        short[way] = min(short[way], run(generate, 1)[0])
        long[way] = min(long[way], run(generate, many)[0])
    token = {way: (long[way] - short[way]) / options.tokens for way in ways}
    return short, token, first, differ


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    installed = importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf")
    by_default = (*BY_DEFAULT, "llama.cpp") if installed else BY_DEFAULT
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--backends", nargs="+", default=by_default, choices=BACKENDS)
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8])
    parser.add_argument("--prompts", nargs="+", type=positive, default=[32, 512])
    parser.add_argument("--precisions", nargs="+", default=["float32"], choices=PRECISIONS)
    add_settings(parser)
    parser.add_argument("--tokens", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    set_threads(options.threads)
    bandwidth = read_bandwidth()
    table = Table(
        title=f"{options.threads} torch threads, {bandwidth / 1e9:.1f} GB/s; "
        f"{' / '.join(options.backends)}"
    )
    columns = ("model", "precision", "batch", "prompt", "ms of the prompt", "ms a token")
    for column in (*columns, "first run, s", "differ", "of the bandwidth"):
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    cases = itertools.product(options.models, options.precisions, options.batches, options.prompts)
    for name, precision, batch, length in cases:
        if name == "gpt2" and PRECISIONS[precision][1] != NONE:
            continue
        torch._dynamo.reset()
        ways = ways_of(name, precision, batch, length, options)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(5, 99, (batch, length), generator=generator)
        prompt, token, first, differ = measure(ways, ids, options)
        rows = [" / ".join(f"{t[b] * 1e3:.1f}" for b in ways) for t in (prompt, token)]
        read = bytes_read(made(name, options.size, PRECISIONS[precision][0]))
        row = (
            *(name, precision, str(batch), str(length), *rows),
            *(" / ".join(f"{first[b]:.1f}" for b in ways), ", ".join(differ) or "none"),
            f"{read / bandwidth / token[options.backends[-1]]:.2f}",
        )
        print(*row, sep=" | ", flush=True)  # it takes minutes
        table.add_row(*row)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
