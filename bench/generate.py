"""Text by transformers' `generate`: milliseconds a token, by batch and length of the prompt.

`python -m bench.generate` measures eager `model.generate`, the same with a static cache and with
Inductor, as transformers compiles it, and `xla_dynamo.generate`, with random weights, greedily. A
token's time is the difference of two runs, one `--tokens` longer than the other, which leaves out
the prompt. Runs take turns. Other tokens than eager's are told; in bfloat16 they may differ where
two are about as likely.
"""

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import xla_dynamo
from bench.decode import bytes_read, read_bandwidth
from bench.models import build
from bench.timing import add_settings, positive, set_threads

MODELS = ("gpt2", "llama", "qwen3")
_SHORT = 4  # tokens of the shorter run
Run = Callable[..., torch.Tensor]


def qwen3(dtype: torch.dtype) -> Any:
    """Qwen3-0.6B's shape, cut to four layers."""
    import transformers

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
    return transformers.Qwen3ForCausalLM(config).eval().to(dtype)


def made(name: str, size: str, dtype: torch.dtype) -> Any:
    """A model of the benchmark that keeps a cache."""
    model = qwen3(dtype) if name == "qwen3" else build(name, size).to(dtype)
    model.config.use_cache = model.generation_config.use_cache = True
    return model


def by_inductor(model: Any) -> Run:
    """`generate` as transformers compiles it, on the CPU too."""
    from transformers import CompileConfig

    compiling = CompileConfig(mode=None)
    compiling._compile_all_devices = True
    settings = {"cache_implementation": "static", "compile_config": compiling}
    return lambda *args, **kwargs: model.generate(*args, **settings, **kwargs)


def ways_of(name: str, options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Run]:
    """By backend what generates; each has a model of its own, with the same weights."""
    models = {way: made(name, options.size, dtype) for way in options.backends}
    every: dict[str, Callable[[Any], Run]] = {
        "eager": lambda model: model.generate,
        "inductor": by_inductor,
        "openxla": lambda model: lambda *args, **kw: xla_dynamo.generate(model, *args, **kw),
    }
    return {way: every[way](model) for way, model in models.items()}


def measure(
    ways: dict[str, Run], ids: torch.Tensor, options: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float], list[str]]:
    """Seconds a token and of the first run by backend, and which backends' tokens differ."""
    many = _SHORT + options.tokens

    def run(generate: Run, tokens: int) -> tuple[float, torch.Tensor]:
        start = time.perf_counter()
        exact = {"min_new_tokens": tokens, "max_new_tokens": tokens}
        found = generate(ids, do_sample=False, pad_token_id=0, **exact)
        return time.perf_counter() - start, found

    first = {way: run(generate, many)[0] for way, generate in ways.items()}
    for generate in ways.values():  # a shorter text may have a smaller cache
        run(generate, _SHORT)
    found = {way: run(generate, many)[1] for way, generate in ways.items()}
    expected = next(iter(found.values()))
    differ = [way for way, tokens in found.items() if not torch.equal(tokens, expected)]
    samples: dict[str, list[float]] = {way: [] for way in ways}
    for _, (way, generate) in itertools.product(range(options.rounds), ways.items()):
        short, long = (run(generate, n)[0] for n in (_SHORT, many))
        samples[way].append((long - short) / options.tokens)
    return {way: statistics.median(s) for way, s in samples.items()}, first, differ


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = ["eager", "inductor", "openxla"]
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--backends", nargs="+", default=every, choices=every)
    parser.add_argument("--batches", nargs="+", type=positive, default=[1, 8])
    parser.add_argument("--prompts", nargs="+", type=positive, default=[32, 512])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    add_settings(parser)
    parser.add_argument("--tokens", type=positive, default=32)
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    bandwidth = read_bandwidth()
    table = Table(
        title=f"{options.dtype}, {options.threads} torch threads, {bandwidth / 1e9:.1f} GB/s: "
        "ms a token of each text"
    )
    last = "first run, s", "differ from the first", "of the bandwidth"
    for column in ("model", "batch", "prompt", *options.backends, *last):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name in options.models:
        torch._dynamo.reset()
        dtype = getattr(torch, options.dtype)
        ways, size = ways_of(name, options, dtype), bytes_read(made(name, options.size, dtype))
        for batch, length in itertools.product(options.batches, options.prompts):
            generator = torch.Generator().manual_seed(0)
            ids = torch.randint(5, 99, (batch, length), generator=generator)
            seconds, first, differ = measure(ways, ids, options)
            table.add_row(
                *(name, str(batch), str(length)),
                *(f"{seconds[b] * 1e3:.1f}" for b in options.backends),
                ", ".join(f"{first[b]:.1f}" for b in options.backends),
                ", ".join(differ) or "none",
                f"{size / bandwidth / seconds[options.backends[-1]]:.2f}",
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
