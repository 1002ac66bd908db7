"""The random numbers of the 'xla' device: seeds of programs come from a generator of its own."""

import contextlib
from collections.abc import Iterator

import torch

from xla_dynamo.calls.seeds import seeds_from

generator = torch.Generator()


def next_key() -> int:
    """The key of the next operator that draws, from the device's generator."""
    drawn = torch.empty(1, dtype=torch.int64, device="cpu")
    return int(drawn.random_(generator=generator))


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Let programs take their seeds from the device's generator."""
    with seeds_from(generator):
        yield
