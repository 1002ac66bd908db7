"""Training steps of GPT-2 (4 layers) and ResNet-18: eager, Inductor, and both roads of openxla.

`python -m bench.training` times whole steps, AdamW included, in interleaved rounds; and, in a
process of its own with cold caches, each one's first step and peak memory. "openxla" compiles
forward and backward, and the optimizer is torch's; "train_step" is one executable; "lazy" records a
plain loop on the 'xla' device. Inductor is used as `torch.compile(model)` with the optimizer that
eager has, as most people do.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import xla_dynamo
from bench.timing import in_fresh_process, interleave, peak_memory, positive, set_threads

BACKENDS = ("eager", "inductor", "openxla", "train_step", "lazy")
Batch = tuple[torch.Tensor, ...]


def gpt2(times: int) -> tuple[torch.nn.Module, Batch]:
    """4 layers of GPT-2's width; `times` x 4 x 128 tokens."""
    import transformers

    none = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(n_layer=4, use_cache=False, **none)
    ids = torch.randint(0, config.vocab_size, (4 * times, 128))
    return transformers.GPT2LMHeadModel(config), (ids, ids)


def resnet18(times: int) -> tuple[torch.nn.Module, Batch]:
    """ResNet-18 on `times` x 8 images of 224 x 224."""
    import transformers

    config = transformers.ResNetConfig(
        hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000
    )
    batch = torch.randn(8 * times, 3, 224, 224), torch.randint(0, 1000, (8 * times,))
    return transformers.ResNetForImageClassification(config), batch


MODELS = {"gpt2": gpt2, "resnet18": resnet18}


def loss_fn(model: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross entropy of an image's class, or of each next token."""
    logits = model(x).logits
    if logits.ndim == 3:
        logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return F.cross_entropy(logits, labels)


def make_step(name: str, backend: str, times: int) -> tuple[Callable[..., torch.Tensor], Batch]:
    """A training step of a fresh model, and its batch, `times` the usual one."""
    torch.manual_seed(0)
    model, batch = MODELS[name](times)
    model.train()
    if backend == "lazy":
        device = xla_dynamo.device()
        model, batch = model.to(device), tuple(x.to(device) for x in batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if backend == "train_step":
        return xla_dynamo.train_step(model, loss_fn, optimizer), batch
    forward = model if backend in ("eager", "lazy") else torch.compile(model, backend=backend)

    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(forward, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return (step if backend != "lazy" else _recorded(step)), batch


def _recorded(step: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def recorded(*batch: torch.Tensor) -> torch.Tensor:
        with xla_dynamo.step():
            return step(*batch)

    return recorded


def alone(name: str, backend: str, times: int) -> tuple[float, float]:
    """Seconds that the first step takes in this process, and its peak memory (GB) after five."""
    step, batch = make_step(name, backend, times)
    start = time.perf_counter()
    step(*batch)
    seconds = time.perf_counter() - start
    for _ in range(4):
        step(*batch)
    return seconds, peak_memory()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", nargs=2, metavar=("MODEL", "BACKEND"))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--times", type=positive, default=1, help="a batch so many times as large")
    parser.add_argument("--no-cold", action="store_true", help="leave out first steps and memory")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    if options.alone:
        print(*alone(*options.alone, options.times))
        return
    if "lazy" in options.backends:
        xla_dynamo.device()  # before autograd starts its threads, one for each device
    table = Table(title=f"training step with AdamW, float32, {options.threads} torch threads")
    for column in ("", *options.backends):
        table.add_column(column, justify="right" if column else "left")
    for name in options.models:
        calls = {}
        for backend in options.backends:
            step, batch = make_step(name, backend, options.times)
            step(*batch)
            calls[backend] = lambda f=step, b=batch: f(*b)
        times = interleave(calls, rounds=options.rounds, seconds=1.0)
        table.add_row(f"{name}, ms", *(f"{t * 1e3:.1f}" for t in times.values()))
        if "inductor" in times:
            ratios = (f"{t / times['inductor']:.2f}" for t in times.values())
            table.add_row("  / inductor", *ratios)
        if not options.no_cold:
            larger = ("--times", str(options.times))
            figures = [
                in_fresh_process("bench.training", "--alone", name, backend, *larger)
                for backend in options.backends
            ]
            table.add_row("  cold first step, s", *(f"{s:.1f}" for s, _ in figures))
            table.add_row("  peak memory (RSS), GB", *(f"{m:.2f}" for _, m in figures))
    Console(width=None if sys.stdout.isatty() else 100).print(table)


if __name__ == "__main__":
    main()
