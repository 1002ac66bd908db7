"""The seeds of random numbers that programs take, drawn from torch's generators."""

import contextlib
import threading
from collections.abc import Iterator

import torch

from xla_dynamo.runtime.executables import check_sameness
from xla_dynamo.runtime.placement import Placement

_seeds = threading.local()


@contextlib.contextmanager
def seeds_from(generator: torch.Generator) -> Iterator[None]:
    """Let this thread's calls take their seeds from another generator than torch's default one."""
    before = getattr(_seeds, "generator", None)
    _seeds.generator = generator
    try:
        yield
    finally:
        _seeds.generator = before


def _generator(placement: Placement) -> torch.Generator | None:
    given = getattr(_seeds, "generator", None)
    return placement.tensors.generator if given is None and placement.tensors else given


def draw_seed(placement: Placement) -> torch.Tensor:
    """A fresh seed from torch's default CPU generator, so that manual_seed repeats a run.

    Raises:
        ProcessError: the processes of one mesh have drawn different ones.
    """
    drawn = torch.empty(1, dtype=torch.int64, device="cpu").random_(generator=_generator(placement))
    check_sameness(
        placement,
        "the seed of random numbers (call torch.manual_seed with one number in all processes)",
        drawn.numpy().tobytes(),
    )
    return drawn.view(torch.uint64)
