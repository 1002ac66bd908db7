"""The arguments of a program that its caller does not pass: its own tensors, -0.0, a seed."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

import torch

from xla_dynamo.lowerings.passes.contraction_barriers import NEGATIVE_ZERO
from xla_dynamo.programs.program import Constant, Program
from xla_dynamo.runtime.buffers import import_tensor
from xla_dynamo.runtime.jaxlib_private import Buffer, buffer_address
from xla_dynamo.runtime.placement import Placement


def constants_of(
    constants: Sequence[Constant], placement: Placement
) -> Callable[[], list[Buffer]] | None:
    """A function that gives the buffers of a graph's own tensors; None if it has none.

    A buffer is a view of its tensor's memory. If it cannot be, the tensor is copied at each call.
    """

    def load(constant: Constant) -> Buffer:
        return import_tensor(constant.tensor.to(placement.torch_device).contiguous(), placement)

    def is_copy(constant: Constant, buffer: Buffer) -> bool:
        return buffer_address(buffer) != constant.tensor.data_ptr() and not constant.is_literal

    if not constants:
        return None
    buffers = [load(constant) for constant in constants]
    pairs = enumerate(zip(constants, buffers, strict=True))
    copied = [(index, c) for index, (c, buffer) in pairs if is_copy(c, buffer)]
    if not copied:
        return lambda: buffers

    def refreshed() -> list[Buffer]:
        again = list(buffers)
        for index, constant in copied:
            again[index] = load(constant)
        return again

    return refreshed


@functools.cache
def negative_zero(placement: Placement) -> Buffer:
    """The -0.0 that keeps XLA from contracting operators (`contraction_barriers`)."""
    return import_tensor(NEGATIVE_ZERO.to(placement.torch_device), placement)


def own_arguments(
    program: Program, placement: Placement
) -> Callable[[int | None], list[Buffer]] | None:
    """A function that gives a program's constants and its seed; None if it has neither.

    The function takes torch's stream.
    """
    constants = constants_of(program.constants, placement)
    if not program.uses_rng and constants is None:
        return None

    def own(stream: int | None) -> list[Buffer]:
        buffers = [] if constants is None else list(constants())
        if program.uses_rng:
            buffers.append(seed(placement, stream))
        return buffers

    return own


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


def seed(placement: Placement, stream: int | None) -> Buffer:
    """The buffer of a fresh seed."""
    return import_tensor(draw_seed(placement).to(placement.torch_device), placement, stream)


def draw_seed(placement: Placement) -> torch.Tensor:
    """A fresh seed from torch's default CPU generator, so that manual_seed repeats a run."""
    drawn = torch.empty(1, dtype=torch.int64, device="cpu")
    return drawn.random_(generator=_generator(placement)).view(torch.uint64)
