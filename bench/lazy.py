"""The lazy 'xla' device: what recording an operator costs, and long training loops.

`python -m bench.lazy` prints microseconds an operator beside eager's dispatch of the same on the
CPU, where tensors are so small that there is no work, in interleaved rounds. `--loop gpt2` (or
`resnet18`) trains the model of `bench.training` for `--steps` steps on the CPU and on the device,
and prints losses, compilations, and how memory and live tensors grow. `--soak 100000` does so with
a small model. `python -m bench.training` times whole steps.
"""

import argparse
import gc
import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import xla_dynamo
from bench.timing import interleave, positive, set_threads
from bench.training import MODELS, loss_fn
from xla_dynamo import metrics
from xla_dynamo.lazy import contents
from xla_dynamo.runtime.process_memory import resident_bytes

Chain = Callable[[torch.Tensor, torch.Tensor], object]
OPERATORS: dict[str, Chain] = {
    "add": lambda x, y: x + y,
    "add, a number": lambda x, y: x + 1.5,
    "mul in place": lambda x, y: x.mul_(y),
    "matmul": lambda x, y: x @ y,
    "sum": lambda x, y: x.sum(-1),
    "view": lambda x, y: x.view(2, 32),
    "transpose": lambda x, y: x.t(),
    "a slice": lambda x, y: x[1:3],
    "layer_norm": lambda x, y: torch.nn.functional.layer_norm(x, (8,)),
}
_CALLS = 100


def recording() -> Table:
    """Microseconds an operator."""
    device = xla_dynamo.device()
    table = Table(title="an operator, microseconds")
    for column in ("", "eager, CPU", "recorded", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    for name, f in OPERATORS.items():
        calls = {}
        for where in (torch.device("cpu"), device):
            x, y = torch.rand(8, 8, device=where), torch.rand(8, 8, device=where)
            calls[str(where)] = _round(f, x, y)
        with torch.no_grad():
            cpu, xla = (t * 1e6 / _CALLS for t in interleave(calls, rounds=9, seconds=0.2).values())
        table.add_row(name, f"{cpu:.1f}", f"{xla:.1f}", f"{xla / cpu:.1f}")
    return table


def _round(f: Chain, x: torch.Tensor, y: torch.Tensor) -> Callable[[], object]:
    def call() -> None:
        for _ in range(_CALLS):
            f(x, y)
        if x.device.type == "xla":  # forget what was recorded, without running it
            x.set_(torch.rand(8, 8, device="xla"))  # type: ignore[call-overload]

    return call


def loop(name: str, steps: int) -> None:
    """Train on the CPU and on the device, and print how it went."""
    curves = {}
    for where in (torch.device("cpu"), xla_dynamo.device()):
        torch.manual_seed(0)
        model, batch = MODELS[name](1)
        model.train().to(where)
        batch = tuple(x.to(where) for x in batch)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        metrics.clear_all()
        losses, memory, tensors, seconds = [], [], [], 0.0
        for number in range(steps):
            start = time.perf_counter()
            with xla_dynamo.step():
                optimizer.zero_grad()
                loss = loss_fn(model, *batch)
                loss.backward()
                optimizer.step()
            losses.append(loss.item())
            seconds += time.perf_counter() - start
            if number in (2, steps // 2, steps - 1):
                gc.collect()
                memory.append(_resident())
                tensors.append(len(contents.live_cells()))
        curves[where.type] = losses
        compiled = metrics.counter_value("UncachedCompile")
        print(
            f"{name} on {where.type}: {seconds / steps * 1e3:.0f} ms a step, {compiled} programs, "
            f"loss {losses[0]:.4f} to {losses[-1]:.4f}, resident MB {memory}, tensors {tensors}"
        )
    pairs = zip(curves["cpu"], curves["xla"], strict=True)
    apart = max(abs(a - b) / max(abs(a), 1e-3) for a, b in pairs)
    print(f"{name}: losses differ by at most {apart:.1e} of their value")


def soak(steps: int) -> None:
    """Train a small model for many steps, on a new batch each, and print what grows."""
    device = xla_dynamo.device()
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    for number in range(1, steps + 1):
        x = torch.randn(4, 8).to(device)
        with xla_dynamo.step():
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if number in (steps // 100, steps // 10, steps // 2, steps):
            gc.collect()
            compiled = metrics.counter_value("UncachedCompile")
            print(
                f"step {number}: loss {loss.item():.1e}, {compiled} programs, resident MB "
                f"{_resident()}, tensors {len(contents.live_cells())}"
            )


def _resident() -> int:
    return resident_bytes() >> 20


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loop", choices=MODELS, help="train this model")
    parser.add_argument("--soak", type=positive, metavar="STEPS", help="of a small model")
    parser.add_argument("--steps", type=positive, default=200)
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    if options.loop:
        loop(options.loop, options.steps)
    elif options.soak:
        soak(options.soak)
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(recording())


if __name__ == "__main__":
    main()
