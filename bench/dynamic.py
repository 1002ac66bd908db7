"""Serving requests of 30 lengths with `dynamic=True`: the first pass, cold, and every later one.

`python -m bench.dynamic` sends BERT sequences of 30 lengths, and lets GPT-2 append 30 tokens to its
past keys one by one. The first pass is timed in a process of its own, compilation included; later
passes are interleaved in one process.
"""

import argparse
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from bench.timing import in_fresh_process, interleave, positive, set_threads

BACKENDS = ("eager", "inductor", "openxla")
Pass = Callable[[Callable[..., object]], None]


def bert() -> tuple[Callable[..., object], Pass]:
    """BERT-base, and a pass over 30 lengths from 8 to 124."""
    import transformers

    model = transformers.BertModel(transformers.BertConfig()).eval()
    batches = [torch.randint(0, 30000, (1, length)) for length in range(8, 128, 4)]

    def serve(run: Callable[..., object]) -> None:
        for ids in batches:
            run(ids)

    return lambda ids: model(input_ids=ids).last_hidden_state, serve


def gpt2() -> tuple[Callable[..., object], Pass]:
    """GPT-2, and a pass that appends 30 tokens to 32, one by one."""
    import transformers

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()

    def step(ids: torch.Tensor, past: object) -> tuple[torch.Tensor, object]:
        cache = transformers.DynamicCache(past) if past else None
        output = model(input_ids=ids, past_key_values=cache, use_cache=True)
        return output.logits, [
            (layer.keys, layer.values) for layer in output.past_key_values.layers
        ]

    with torch.no_grad():
        prompt = step(torch.randint(0, 50000, (1, 32)), None)[1]
    token = torch.randint(0, 50000, (1, 1))

    def serve(run: Callable[..., object]) -> None:
        past = prompt
        for _ in range(30):
            _, past = run(token, past)  # type: ignore[misc]

    return step, serve


MODELS = {"BERT-base, 30 lengths": bert, "GPT-2, 30 tokens with past keys": gpt2}


def compiled(function: Callable[..., object], backend: str) -> Callable[..., object]:
    if backend == "eager":
        return function
    return torch.compile(function, backend=backend, dynamic=True, fullgraph=True)


def first_pass(name: str, backend: str) -> float:
    """Seconds of the first pass in this process, everything imported beforehand."""
    torch.manual_seed(0)
    function, serve = MODELS[name]()
    if backend != "eager":
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    start = time.perf_counter()
    serve(compiled(function, backend))
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-pass", nargs=2, metavar=("MODEL", "BACKEND"))
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=positive, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    table = Table(title=f"dynamic=True, {options.threads} torch threads")
    for column in ("", *BACKENDS, "openxla / inductor"):
        table.add_column(column, justify="right" if column else "left")
    with torch.no_grad():
        if options.first_pass:
            print(first_pass(*options.first_pass))
            return
        for name, make in MODELS.items():
            torch.manual_seed(0)
            torch._dynamo.reset()
            cold = [in_fresh_process("bench.dynamic", "--first-pass", name, b)[0] for b in BACKENDS]
            function, serve = make()
            passes = {b: functools.partial(serve, compiled(function, b)) for b in BACKENDS}
            later = list(interleave(passes, rounds=options.rounds, seconds=0).values())
            for what, seconds in (("first pass, cold, s", cold), ("a later pass, s", later)):
                ratio = f"{seconds[2] / seconds[1]:.2f}"
                table.add_row(f"{name}: {what}", *(f"{s:.2f}" for s in seconds), ratio)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


if __name__ == "__main__":
    main()
