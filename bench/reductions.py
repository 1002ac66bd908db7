"""What reductions take in eager torch, by Inductor, as XLA has them itself, and as we write them.

`python -m bench.reductions` times sums of squares and some norms. "XLA's own" is a program whose
reductions were not written anew (lowerings/passes/split_reductions.py), with XLA's rewriter on.
Rounds are interleaved in one process; a result smaller than 0.1 ms is the waking of threads.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from unittest import mock

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

from bench.timing import interleave, positive, set_threads
from xla_dynamo.lowerings.passes import split_reductions

Function = Callable[[torch.Tensor], torch.Tensor]


def _squares(*dims: int) -> Function:
    return lambda x: (x * x).sum(dims)


def _group_norm(x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 32)


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:])


CASES: dict[str, tuple[Function, Sequence[int]]] = {
    "rows of 768": (_squares(1), (2048, 768)),
    "rows of 4096": (_squares(1), (256, 4096)),
    "maxima of rows of 128": (lambda x: x.amax(1), (8192, 128)),
    "all of 16 M": (_squares(0), (1 << 24,)),
    "56 x 56": (_squares(2, 3), (64, 64, 56, 56)),
    "7 x 7": (_squares(2, 3), (64, 512, 7, 7)),
    "12,544 rows of 256": (_squares(0), (12544, 256)),
    "4 x 197 rows of 768": (_squares(1), (4, 197, 768)),
    "4 x 28 x 28 rows of 512": (_squares(0, 1, 2), (4, 28, 28, 512)),
    "1024 rows and 4 columns": (_squares(1, 3), (4, 1024, 32, 4)),
    "layer norm": (_layer_norm, (2048, 768)),
    "group norm": (_group_norm, (4, 256, 32, 32)),
    "softmax": (lambda x: x.softmax(-1), (4, 12, 256, 256)),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a row a case, in ms."""
    parser = argparse.ArgumentParser(prog="python -m bench.reductions", description=__doc__)
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--rounds", type=positive, default=9)
    options = parser.parse_args(arguments)
    set_threads(options.threads)
    table = Table("ms", "eager", "Inductor", "XLA's own", "openxla", title=parser.prog)
    for name, (f, shape) in CASES.items():
        torch._dynamo.reset()
        x = torch.randn(shape)
        calls = {"eager": f, "inductor": torch.compile(f), "own": _own(f, x)}
        calls["openxla"] = torch.compile(f, backend="openxla")
        for call in calls.values():
            call(x)
        timed = {key: functools.partial(call, x) for key, call in calls.items()}
        times = interleave(timed, rounds=options.rounds, seconds=0.1)
        table.add_row(name, *(f"{1e3 * time:.2f}" for time in times.values()))
    Console().print(table)


def _own(f: Function, x: torch.Tensor) -> Function:
    """Compiled without ours."""
    options = {"xla_options": {"xla_disable_hlo_passes": ""}}
    call = torch.compile(lambda x: f(x), backend="openxla", options=options)
    with mock.patch.object(split_reductions, "FEWEST", sys.maxsize):
        call(x)
    return call


if __name__ == "__main__":
    main()
