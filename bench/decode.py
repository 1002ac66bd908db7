"""Text token by token with a static cache of keys and values: tokens a second.

`python -m bench.decode` decodes greedily with GPT-2 and a small Llama, batch 1, random weights. The
cache, of `--cache` places, is updated in place, one token's keys and values a call; each backend
has a cache of its own. All backends must choose eager's tokens; in bfloat16, where two are about as
likely, they may differ. Rounds of `--tokens` tokens each are interleaved. A token reads every
weight once, so the memory bounds its time: the last column is the share of its bandwidth.
"""

import argparse
import time
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from bench.models import build
from bench.timing import add_settings, interleave, positive, set_threads

BACKENDS = ("eager", "inductor", "openxla")
PROMPT = 16


class Decoder:
    """A language model with a static cache, called for one token at a time."""

    def __init__(self, model: torch.nn.Module, backend: str, length: int) -> None:
        import transformers

        self.model = model if backend == "eager" else torch.compile(model, backend=backend)
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=length)

    def logits(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """Those of what follows `token`, [1, 1], at `position`, [1]: [1, 1, vocabulary]."""
        found: torch.Tensor = self.model(
            input_ids=token,
            position_ids=position[None],
            cache_position=position,
            past_key_values=self.cache,
            use_cache=True,
        ).logits
        return found[:, -1:]

    def next_token(self, token: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        """The likeliest token behind `token`, at `position`."""
        return self.logits(token, position).argmax(-1)

    def decode(self, prompt: torch.Tensor, tokens: int) -> list[int]:
        """The tokens that follow a prompt, [length], each the likeliest one."""
        self.cache.reset()
        places = torch.arange(len(prompt) + tokens)
        for place, token in enumerate(prompt):
            following = self.next_token(token.view(1, 1), places[place : place + 1])
        decoded = [int(following)]
        for place in range(len(prompt), len(prompt) + tokens - 1):
            following = self.next_token(following, places[place : place + 1])
            decoded.append(int(following))
        return decoded


def read_bandwidth() -> float:
    """Bytes a second that torch reads from memory, with its threads."""
    x = torch.ones(1 << 28)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        x.sum()
        seconds.append(time.perf_counter() - start)
    return 4 * x.numel() / min(seconds)


def bytes_read(model: torch.nn.Module) -> int:
    """The bytes of the weights that a token reads: all but embeddings, of which it reads a row.

    An embedding that is the last layer's weight too is read.
    """
    every = list(model.modules())
    tables = {m.weight for m in every if isinstance(m, torch.nn.Embedding)}
    layers = [m for m in every if not isinstance(m, torch.nn.Embedding)]
    read = {p for layer in layers for p in layer.parameters(recurse=False)}
    return sum(p.nbytes for p in model.parameters() if p in read or p not in tables)


def measure(
    name: str, options: argparse.Namespace, dtype: torch.dtype
) -> tuple[dict, dict, list[str], int]:
    """Tokens a second and seconds of the first token by backend, whose tokens differ, and bytes.

    The bytes are those of the weights that a token reads.
    """
    tokens, cache, rounds = options.tokens, options.cache, options.rounds
    model = build(name, options.size).to(dtype)
    model.config.use_cache = True
    prompt = torch.randint(0, 99, (PROMPT,), generator=torch.Generator().manual_seed(0))
    calls: dict[str, Callable[[], object]] = {}
    first, wrong = {}, []
    expected: list[int] = []
    for backend in BACKENDS:
        torch._dynamo.reset()
        decoder = Decoder(model, backend, max(cache, PROMPT + tokens))
        start = time.perf_counter()
        decoder.next_token(prompt[:1].view(1, 1), torch.tensor([0]))
        first[backend] = time.perf_counter() - start
        decoded = decoder.decode(prompt, tokens)
        expected = expected or decoded
        if decoded != expected:
            wrong.append(backend)
        calls[backend] = lambda decoder=decoder: decoder.decode(prompt, tokens)
    seconds = interleave(calls, rounds=rounds, seconds=0.0)
    speed = {b: (PROMPT + tokens - 1) / s for b, s in seconds.items()}
    return speed, first, wrong, bytes_read(model)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama"])
    add_settings(parser)
    parser.add_argument("--tokens", type=positive, default=32)
    parser.add_argument("--cache", type=positive, default=1024, help="places for tokens")
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    bandwidth = read_bandwidth()
    table = Table(
        title=f"decoding, batch 1, {options.dtype}, a cache of {options.cache} places, "
        f"{options.threads} torch threads, {bandwidth / 1e9:.1f} GB/s: tokens/s"
    )
    last = "first token, s", "differ from eager", "of the bandwidth"
    for column in ("model", *BACKENDS, "openxla / inductor", *last):
        table.add_column(column, justify="left" if column == "model" else "right")
    with torch.no_grad():
        for name in options.models:
            speed, first, wrong, size = measure(name, options, getattr(torch, options.dtype))
            table.add_row(
                name,
                *(f"{speed[b]:.1f}" for b in BACKENDS),
                f"{speed['openxla'] / speed['inductor']:.2f}",
                ", ".join(f"{first[b]:.1f}" for b in BACKENDS),
                ", ".join(wrong) or "none",
                f"{speed['openxla'] * size / bandwidth:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
