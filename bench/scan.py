"""Layers of the lazy device as one loop: programs, their sizes, and the time to compile them.

`python -m bench.scan` runs a forward and a backward of 1, 8 and 64 transformer blocks in three
ways: `scan` over weights that lie in stacks, which is one program of one size; `scan_layers` over
blocks, whose program has the same loop, and beside it an input and a gradient for each weight; and
block after block. Each runs in a process of its own without a disk cache, and its loss is compared
with eager's.
"""

import argparse
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from bench.timing import in_fresh_process, positive, set_threads
from xla_dynamo.events import BuiltExecutable
from xla_dynamo.switches.ours import CACHE_DIR

WAYS = ("scan", "scan_layers", "blocks")
WIDTH, TOKENS, BATCH, RUNS = 128, 32, 2, 5


class _Programs(logging.Handler):
    """The programs that are compiled, as the log tells of them."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[BuiltExecutable] = []

    def emit(self, record: logging.LogRecord) -> None:
        args = record.args if isinstance(record.args, tuple) else ()
        self.built += [event for event in args if isinstance(event, BuiltExecutable)]


def _block() -> torch.nn.Module:
    return torch.nn.TransformerEncoderLayer(
        WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )


def figures(way: str, count: int) -> list[float]:
    """Programs, bytes of StableHLO, seconds to lower and to compile, of a later run, and the error.

    The seconds are those of the programs; tracing is not among them.
    """
    import xla_dynamo
    from xla_dynamo.torch_xla.forms.scan import scan
    from xla_dynamo.torch_xla.forms.scan_layers import scan_layers

    device, programs = xla_dynamo.device(), _Programs()
    torch.manual_seed(0)
    blocks = [_block() for _ in range(count)]
    x = torch.randn(BATCH, TOKENS, WIDTH)
    expected = torch.nn.Sequential(*blocks)(x).square().mean().item()
    names = [name for name, _ in blocks[0].named_parameters()]
    states = [dict(block.named_parameters()) for block in blocks]
    stacks = {
        n: torch.stack([s[n].detach() for s in states]).to(device).requires_grad_() for n in names
    }
    layers, x = torch.nn.ModuleList(blocks).to(device), x.to(device)
    one = layers[0]

    def by_stacks() -> torch.Tensor:
        def step(carry: torch.Tensor, state: dict[str, torch.Tensor]) -> tuple[torch.Tensor, None]:
            return torch.func.functional_call(one, state, carry), None

        return scan(step, x, stacks)[0]

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "scan": by_stacks,
        "scan_layers": lambda: scan_layers(layers, x),
        "blocks": lambda: torch.nn.Sequential(*layers)(x),
    }
    xla_dynamo.sync()
    log = logging.getLogger("xla_dynamo")
    log.setLevel(logging.INFO)
    log.addHandler(programs)
    log.propagate = False
    times = []
    for _ in range(RUNS):
        for weight in (*layers.parameters(), *stacks.values()):
            weight.grad = None
        start = time.perf_counter()
        loss = ways[way]().square().mean()
        loss.backward()
        xla_dynamo.sync(wait=True)
        times.append(time.perf_counter() - start)
    built = list(programs.built)
    error = abs(loss.item() - expected) / abs(expected)
    size = sum(len(program.stablehlo) for program in built)
    lowering, xla = (sum(p.seconds[i] for p in built) for i in (0, 1))
    return [len(built), size, lowering, xla, sorted(times[1:])[0], error]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "LAYERS"))
    parser.add_argument("--layers", type=positive, nargs="*", default=[1, 8, 64])
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    CACHE_DIR.put("")
    set_threads(options.threads)
    if options.one:
        print(*figures(options.one[0], int(options.one[1])))
        return
    table = Table(title="forward and backward of transformer blocks on the lazy device")
    for column in ("", "layers", "programs", "StableHLO, kB", "lowering, s", "XLA, s", "run, ms"):
        table.add_column(column, justify="right" if column else "left")
    for way in WAYS:
        for count in options.layers:
            found = in_fresh_process("bench.scan", "--one", way, str(count))
            programs, size, lowering, xla, later, error = found
            if error > 1e-4:
                sys.exit(f"{way}, {count} layers: the loss is off by {error:.1e}")
            cells = [f"{programs:.0f}", f"{size / 1e3:.1f}", f"{lowering:.2f}", f"{xla:.2f}"]
            table.add_row(way, str(count), *cells, f"{later * 1e3:.0f}")
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
