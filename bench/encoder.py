"""A BERT-base encoder at 8 x 128 tokens: latency and cold compile time against Inductor.

`python -m bench.encoder` compiles each backend in a process of its own for the compile times, then
both in one process for interleaved latencies, and prints the ratios; and what share of the
machine's peak of float32 matrix products each reaches, which is measured in the same rounds, as the
fastest of a few square products by torch and by XLA.
"""

import argparse
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from bench.accuracy import relative_error
from bench.models import randomize_constants
from bench.timing import in_fresh_process, interleave, positive, set_threads

BACKENDS = ("inductor", "openxla")
SHAPE = (8, 128)
SQUARES = (1024, 2048)


def encoder() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """A BertModel of the base size with random weights, and its inputs."""
    import transformers

    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig()).eval()
    randomize_constants(model, 0)
    ids = torch.randint(0, 30000, SHAPE)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def first_call(backend: str) -> float:
    """Seconds that the first call takes in this process, everything imported beforehand."""
    model, inputs = encoder()
    with torch.no_grad():
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        start = time.perf_counter()
        compiled(**inputs)
        return time.perf_counter() - start


def cold_compile(backend: str) -> float:
    """`first_call` in a fresh process with empty caches."""
    return in_fresh_process("bench.encoder", "--first-call", backend)[0]


def products() -> dict[str, Callable[[], object]]:
    """Products of square matrices, by the name of who computes them and the size."""
    calls: dict[str, Callable[[], object]] = {}
    for size in SQUARES:
        x, y = torch.randn(2, size, size)
        compiled = torch.compile(lambda x, y: x @ y.T, backend="openxla", dynamic=False)
        compiled(x, y)
        calls[f"torch {size}"] = functools.partial(torch.mm, x, y)
        calls[f"XLA {size}"] = functools.partial(compiled, x, y)
    return calls


class Measured(NamedTuple):
    """What `measure` finds, by backend."""

    seconds: dict[str, float]
    """The median of a call."""
    error: float
    """Of ours, relative to eager."""
    shares: dict[str, float]
    """Of the machine's peak of products, that a call reaches."""
    products: dict[str, float]
    """FLOPS of the fastest product, by "torch" and "XLA"."""


def measure() -> Measured:
    """The encoder in eager and by both backends, and products, in turn."""
    model, inputs = encoder()
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            model(**inputs)
        calls: dict[str, Callable[[], object]] = {"eager": lambda: model(**inputs)}
        for backend in BACKENDS:
            compiled = torch.compile(model, backend=backend, fullgraph=True)
            result = compiled(**inputs)
            calls[backend] = lambda f=compiled: f(**inputs)
        error = relative_error(model(**inputs), result)
        seconds = interleave({**calls, **products()}, rounds=11, seconds=1.0)
    speeds = {
        who: max(2 * size**3 / seconds[f"{who} {size}"] for size in SQUARES)
        for who in ("torch", "XLA")
    }
    latency = {name: seconds[name] for name in calls}
    flops, peak = counter.get_total_flops(), max(speeds.values())
    shares = {name: flops / s / peak for name, s in latency.items()}
    return Measured(latency, error, shares, speeds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first-call", choices=("aot_eager", *BACKENDS))
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    if options.first_call:
        print(first_call(options.first_call))
        return
    compile_seconds = {b: cold_compile(b) for b in ("aot_eager", *BACKENDS)}
    measured = measure()
    batch, length = SHAPE
    size = f"{batch} x {length} tokens"
    table = Table(title=f"BERT-base encoder, {size}, {options.threads} torch threads")
    for column in ("", "eager", "inductor", "openxla", "openxla / inductor"):
        table.add_column(column, justify="right" if column else "left")
    ratio = measured.seconds["openxla"] / measured.seconds["inductor"]
    latencies = [f"{s * 1e3:.1f}" for s in measured.seconds.values()]
    table.add_row("latency, ms", *latencies, f"{ratio:.2f}")
    ratio = compile_seconds["openxla"] / compile_seconds["inductor"]
    seconds = [f"{s:.1f}" for s in compile_seconds.values()]
    seconds[0] = f"{seconds[0]} (aot_eager)"  # Dynamo and AOTAutograd alone, which all share
    table.add_row("cold first call, s", *seconds, f"{ratio:.2f}")
    table.add_row("share of peak", *(f"{share:.0%}" for share in measured.shares.values()), "")
    ours, torchs = (f"{measured.products[who] / 1e9:.0f}" for who in ("XLA", "torch"))
    table.add_row("products, GFLOPS", torchs, "", ours, "")
    table.add_row("error against eager", "-", "-", f"{measured.error:.0e}", "")
    Console(width=None if sys.stdout.isatty() else 100).print(table)


if __name__ == "__main__":
    main()
