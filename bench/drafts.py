"""Text of a repetitive prompt: milliseconds a token, plain and with tokens looked up in the prompt.

`python -m bench.drafts` lets models of random weights, which repeat themselves, go on with a prompt
that does too: eager `model.generate` and `xla_dynamo.generate`, both without a draft and with
`prompt_lookup_num_tokens`. "tokens a step" is what a verification brings: with one that brings 1,
looking up costs its time and gains nothing.
"""

import argparse
import itertools
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers.generation import BaseStreamer

import xla_dynamo
from bench.generate import MODELS, made
from bench.timing import add_settings, positive, set_threads

PLAIN = 0  # tokens looked up


class _Steps(BaseStreamer):
    """Counts the steps that a text takes, the prompt's put left out."""

    def __init__(self) -> None:
        self.count = -1

    def put(self, value: torch.Tensor) -> None:
        self.count += 1

    def end(self) -> None:
        pass


def ways_of(
    name: str, options: argparse.Namespace, ids: torch.Tensor
) -> dict[tuple[str, int], Callable[..., torch.Tensor]]:
    """By backend and number of tokens looked up what generates the text."""
    length = {"min_new_tokens": options.tokens, "max_new_tokens": options.tokens}
    settings: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, **length}

    def way(backend: str, looked_up: int) -> Callable[..., torch.Tensor]:
        model = made(name, options.size, getattr(torch, options.dtype))
        more = {"prompt_lookup_num_tokens": looked_up} if looked_up else {}
        if backend == "eager":
            return lambda **kw: model.generate(ids, **settings, **more, **kw)
        return lambda **kw: xla_dynamo.generate(model, ids, **settings, **more, **kw)

    return {(b, n): way(b, n) for b in ("eager", "openxla") for n in (PLAIN, *options.lookup)}


def fastest(ways: Mapping[Any, Callable[[], object]], rounds: int) -> dict[Any, float]:
    """The least seconds of a call, over rounds in which each way takes its turn."""
    found = dict.fromkeys(ways, float("inf"))
    for _, (way, call) in itertools.product(range(rounds), ways.items()):
        start = time.perf_counter()
        call()
        found[way] = min(found[way], time.perf_counter() - start)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["gpt2", "llama"], choices=MODELS)
    parser.add_argument("--lookup", nargs="+", type=positive, default=[3, 7, 15])
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    add_settings(parser)
    parser.add_argument("--prompt", type=positive, default=64)
    parser.add_argument("--tokens", type=positive, default=64)
    parser.add_argument("--rounds", type=positive, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    table = Table(
        title=f"{options.dtype}, {options.threads} torch threads, batch 1: ms a token, plain and "
        f"with {', '.join(map(str, options.lookup))} tokens looked up"
    )
    for column in ("model", "backend", "ms a token", "tokens a step", "differ from the first"):
        table.add_column(column, justify="left" if column in ("model", "backend") else "right")
    piece = torch.randint(5, 99, (1, 8), generator=torch.Generator().manual_seed(0))
    ids = piece.repeat(1, options.prompt // 8)
    for name in options.models:
        torch._dynamo.reset()
        ways = ways_of(name, options, ids)
        texts, steps = {}, {}
        for way, generate in ways.items():
            streamer = _Steps()
            texts[way], steps[way] = generate(streamer=streamer), streamer.count
        seconds = fastest(ways, options.rounds)
        first = next(iter(texts.values()))
        for backend in ("eager", "openxla"):
            mine = [way for way in ways if way[0] == backend]
            table.add_row(
                *(name, backend),
                " / ".join(f"{seconds[way] / options.tokens * 1e3:.1f}" for way in mine),
                " / ".join(f"{options.tokens / steps[way]:.1f}" for way in mine),
                ", ".join(str(n) for b, n in mine if not torch.equal(texts[b, n], first)) or "none",
            )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
