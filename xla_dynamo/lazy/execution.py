"""Compile and run slices, which gives values their tensors."""

import collections
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.backend import compile_torch_graph
from xla_dynamo.lazy import contents, debug, growth, modes
from xla_dynamo.lazy.clean_state import clean_state
from xla_dynamo.lazy.contents import Value, bits_of, cell_of, geometry_of
from xla_dynamo.lazy.random_state import drawing
from xla_dynamo.lazy.slices import Slice, cut
from xla_dynamo.lazy.trace import trace
from xla_dynamo.options import Options
from xla_dynamo.runtime import metrics
from xla_dynamo.torch_private import storage_id

Tensor: TypeAlias = torch.Tensor
_MOST_PROGRAMS = 1024

# Held while values are computed and while their tensors are read: a program may write into the
# memory of values that are gone. Taken before `contents.lock`.
running = threading.RLock()
_programs: "collections.OrderedDict[Any, Program]" = collections.OrderedDict()


class Program:
    """A compiled slice.

    Attributes:
        call: takes the tensors of the inputs, and the vector of changing numbers.
        copied: the results to copy, since they lie in the memory of another or of an input, or have
            other strides than were recorded; None before the first run.
    """

    def __init__(self, part: Slice, device: torch.device) -> None:
        gm = trace(part, device)
        tensors = inputs_of(part)
        self.call: Callable[..., Sequence[Tensor]] = compile_torch_graph(
            gm, tensors, Options.parse(None), kind="lazy tensors"
        )
        self.copied: list[int] | None = None

    def run(self, part: Slice) -> list[Tensor]:
        """The outputs' tensors."""
        tensors = inputs_of(part)
        results = list(self.call(*tensors))
        made = [v for v, r in zip(part.outputs, part.replaced, strict=True) if r < 0]
        if self.copied is None:
            self.copied = _unfit(tensors, results, made)
        for index in self.copied:
            _, size, stride, _ = made[index].geometry
            result = results[index]
            results[index] = result.new_empty_strided(size, stride).copy_(result)
        new = iter(results)
        return [next(new) if r < 0 else tensors[r] for r in part.replaced]


def inputs_of(part: Slice) -> list[Tensor]:
    """What a slice's graph is called with."""
    tensors = [v.tensor for v in part.inputs if v.tensor is not None]
    if part.numbers:
        tensors.append(torch.tensor(part.numbers, dtype=torch.float64))
    return tensors


def _unfit(
    inputs: Sequence[Tensor], results: Sequence[Tensor], values: Sequence[Value]
) -> list[int]:
    """The results that cannot be the tensors of their values as they are."""
    seen = set(map(storage_id, inputs))
    found = []
    for index, (result, value) in enumerate(zip(results, values, strict=True)):
        memory = storage_id(result)
        if memory in seen or result.stride() != value.geometry[2] or result.storage_offset():
            found.append(index)
        seen.add(memory)
    return found


def compute(
    roots: Iterable[Value] | None = None,
    cause: str = "a value is asked for",
    accept: Callable[[Any], None] | None = None,
) -> None:
    """Give these values their tensors, or all values that live.

    Args:
        roots: the values; None for all.
        cause: why, for the debug summary.
        accept: called with the key of the program before it is compiled or run; may raise.

    Raises:
        XlaDynamoError: see `errors`. What was pending still is.
    """
    with running:
        with contents.lock:
            part = cut(roots)
        growth.restart()
        if part is None:
            return
        modes.refuse_inside_a_full_graph()
        if accept is not None:
            accept(part.key)
        with clean_state(), drawing():
            program = _programs.get(part.key)
            debug.tell(program is None, cause, part)
            if program is None:
                program = _programs[part.key] = Program(part, device_that_computes())
                if len(_programs) > _MOST_PROGRAMS:
                    _programs.popitem(last=False)
            else:
                metrics.increment("CachedCompile")
                _programs.move_to_end(part.key)
            with metrics.timed("ExecuteTime"):
                tensors = program.run(part)
        with contents.lock:
            for value, tensor in zip(part.outputs, tensors, strict=True):
                value.tensor, value.record = tensor, None


def device_that_computes() -> torch.device:
    """The torch device that shares its memory with PJRT's."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@contextlib.contextmanager
def tensors_behind(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The elements of 'xla' tensors, computed: views of their memory, for as long as this is open.

    Nothing may be written there.
    """
    with running:
        values = [cell_of(t).value for t in tensors]
        if pending := [v for v in values if v.tensor is None]:
            compute(pending)
        yield [shown(t, v.tensor) for t, v in zip(tensors, values, strict=True)]


def shown(tensor: Tensor, memory: Tensor | None) -> Tensor:
    """The elements that a tensor shows of its value's memory, which is itself if these are all."""
    assert memory is not None
    bits = bits_of(tensor)
    if not bits and geometry_of(tensor) == geometry_of(memory):
        return memory
    if tensor.dtype != memory.dtype:
        memory = contents.as_dtype(memory, tensor.dtype)
    elements = memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    for op in bits:
        elements = op(elements)
    return elements
