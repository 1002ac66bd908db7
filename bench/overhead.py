"""What a call costs beyond the work: graphs so small that there is none.

`python -m bench.overhead` prints microseconds a call and the ratio to Inductor's, in one run.
"""

import torch
from rich.console import Console
from rich.table import Table

from bench.timing import interleave, set_threads


class Chain(torch.nn.Module):
    """Adds its parameters up."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.terms = torch.nn.ParameterList(torch.randn(8) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for term in self.terms:
            x = x + term
        return x


def two_inputs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x + y) * y


def update_cache(cache: torch.Tensor, new: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """One token's keys into a cache, as the static caches of transformers do."""
    cache.index_copy_(2, place, new)
    return new[..., 0] * 2


def cases() -> dict[str, tuple]:
    return {
        "two inputs": (two_inputs, (torch.randn(8), torch.randn(8))),
        "100 parameters": (Chain(100), (torch.randn(8),)),
        "16 MB cache": (
            update_cache,
            (torch.zeros(1, 16, 4096, 64), torch.randn(1, 16, 1, 64), torch.tensor([7])),
        ),
    }


def main() -> None:
    """Measure and print."""
    set_threads(1)
    table = Table(title="call overhead (µs a call, median of interleaved rounds)")
    for column in ("graph", "eager", "inductor", "openxla", "openxla / inductor"):
        table.add_column(column, justify="left" if column == "graph" else "right")
    with torch.no_grad():
        for name, (function, args) in cases().items():
            calls = {"eager": lambda f=function, a=args: f(*a)}
            for backend in ("inductor", "openxla"):
                compiled = torch.compile(function, backend=backend, fullgraph=True)
                torch.testing.assert_close(compiled(*args), function(*args))
                calls[backend] = lambda f=compiled, a=args: f(*a)
            times = interleave(calls)
            ratio = times["openxla"] / times["inductor"]
            table.add_row(name, *(f"{t * 1e6:.1f}" for t in times.values()), f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
