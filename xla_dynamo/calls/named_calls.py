"""Calls of programs that `torch.profiler` shows under the programs' names."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from xla_dynamo.torch_private import is_profiling

Call = Callable[[list[Any]], list[Any]]
PREFIX = "xla_dynamo: "
COMPILATION = f"{PREFIX}compilation"
_nothing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def named(call: Call, name: str) -> Call:
    """The same call, an event of torch's profiler where one runs; else it costs 0.1 us."""
    title = PREFIX + name

    def named_call(args: list[Any]) -> list[Any]:
        if not is_profiling():
            return call(args)
        with torch.profiler.record_function(title):
            return call(args)

    return named_call


def shown_as(name: str) -> contextlib.AbstractContextManager[Any]:
    """The same for a block."""
    return torch.profiler.record_function(PREFIX + name) if is_profiling() else _nothing


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Let torch's profiler show that something is compiled in this block."""
    with torch.profiler.record_function(COMPILATION) if is_profiling() else _nothing:
        yield
