"""Compile time of a stack of equal transformer blocks, as it grows with their number.

`python -m bench.depth` compares three ways to write the stack: block after block; with the block
marked `torch.compiler.nested_compile_region`, so that Dynamo traces it once; and as one loop over
stacked weights (`scan`), which XLA compiles once. Each runs in a process of its own; the stages of
compiling are those of `xla_dynamo.explain`; `--depths 80` is a graph of more than 2,000 nodes.
"""

import argparse
import os
import sys
import time
import warnings

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import xla_dynamo
from bench.timing import in_fresh_process, positive, set_threads

WAYS = ("blocks", "nested_compile_region", "scan")
WIDTH, HEADS, TOKENS = 768, 12, 128


class Block(torch.nn.Module):
    """A pre-norm transformer block, of the size of GPT-2's."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class MarkedBlock(Block):
    """The same, marked to be traced once."""

    forward = torch.compiler.nested_compile_region(Block.forward)


class Loop(torch.nn.Module):
    """The same stack as one loop; the weights are stacked at every call."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.scan import scan

        first: torch.nn.Module = self.blocks[0]
        weights = [dict(block.named_parameters()) for block in self.blocks]
        stacked = {name: torch.stack([w[name] for w in weights]) for name in weights[0]}

        def step(x: torch.Tensor, weights: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
            return torch.func.functional_call(first, weights, (x,)), x.new_zeros(())

        return scan(step, x, stacked)[0]


def stack(way: str, depth: int) -> torch.nn.Module:
    """The model, written in one of the ways."""
    torch.manual_seed(0)
    if way == "scan":
        return Loop(depth)
    kind = MarkedBlock if way == "nested_compile_region" else Block
    return torch.nn.Sequential(*(kind() for _ in range(depth)))


def stages(way: str, depth: int) -> list[float]:
    """Nodes, seconds of each stage of the first call, and the median seconds of a later one."""
    torch.compile(lambda x: x + 1, backend="openxla")(torch.ones(2))
    model, x = stack(way, depth), torch.randn(1, TOKENS, WIDTH)
    explained = xla_dynamo.explain(model)
    with torch.no_grad():
        report = explained(x)
        found = list(report.seconds.values())
        later = []
        for _ in range(7):
            start = time.perf_counter()
            explained(x)
            later.append(time.perf_counter() - start)
    torch.testing.assert_close(report.result, model(x).detach(), atol=1e-3, rtol=1e-3)
    nodes = sum(len(graph.operators) for graph in report.graphs)
    return [nodes, *found, sorted(later)[3]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=2, metavar=("WAY", "DEPTH"))
    parser.add_argument("--depths", type=positive, nargs="*", default=[1, 6, 24])
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    set_threads(options.threads)
    if options.one:
        print(*stages(options.one[0], int(options.one[1])))
        return
    table = Table(title="seconds of the first call by stage, and ms of a later one")
    names = ("Dynamo", "AOTAutograd", "lowering", "XLA", "all")
    for column in ("", "blocks", "nodes", *names, "lowering, us a node", "later, ms"):
        table.add_column(column, justify="right" if column else "left")
    for way in WAYS:
        for depth in options.depths:
            nodes, *seconds, later = in_fresh_process("bench.depth", "--one", way, str(depth))
            cells = [f"{s:.2f}" for s in (*seconds, sum(seconds))]
            cells.append(f"{seconds[2] / nodes * 1e6:.0f}")
            table.add_row(way, str(depth), f"{nodes:.0f}", *cells, f"{later * 1e3:.1f}")
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
