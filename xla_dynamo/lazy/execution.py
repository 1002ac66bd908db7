"""Compile and run slices, which gives values their buffers."""

import collections
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch

from xla_dynamo.backend import compile_torch_graph
from xla_dynamo.calls.calls import BoxedGraph
from xla_dynamo.calls.named_calls import shown_as
from xla_dynamo.errors import ExecutionError
from xla_dynamo.lazy import (
    auto_sharding,
    contents,
    debug,
    donations,
    growth,
    manual_regions,
    memory,
    modes,
    placeholders,
)
from xla_dynamo.lazy.clean_state import clean_state
from xla_dynamo.lazy.contents import Value, cell_of
from xla_dynamo.lazy.draws import packed
from xla_dynamo.lazy.random_state import drawing
from xla_dynamo.lazy.slices import Slice, cut
from xla_dynamo.lazy.trace import examples, trace
from xla_dynamo.options import Options
from xla_dynamo.runtime import metrics, topology
from xla_dynamo.runtime.buffers import import_tensor
from xla_dynamo.runtime.cpu.deferred_signals import after_signals
from xla_dynamo.runtime.jaxlib_private import Buffer
from xla_dynamo.runtime.processes import job
from xla_dynamo.runtime.streams import wait_for_torch
from xla_dynamo.torch_private import storage_id

Tensor: TypeAlias = torch.Tensor
_MOST_PROGRAMS = 1024
_ONE_DEVICE = "ExecuteComputation", "ExecuteTime"
_PARTITIONED = "ExecuteReplicated", "ExecuteReplicatedTime"

# Held while values are computed and while their buffers are read: a program may write into the
# memory of values that are gone. Taken before `contents.lock`.
running = threading.RLock()
_programs: "collections.OrderedDict[Any, CompiledSlice]" = collections.OrderedDict()
# Values whose program could not be compiled. The user was told. `sync()` does not try them again:
# their error is raised when somebody reads one.
_left: "weakref.WeakSet[Value]" = weakref.WeakSet()


class CompiledSlice:
    """A compiled slice."""

    def __init__(self, part: Slice) -> None:
        self._placement = memory.placement()
        device = self._placement.torch_device
        division = part.division
        shardings = {} if division is None else dict(enumerate(division.given))
        made: list[BoxedGraph] = []
        self._call: Callable[..., Sequence[Tensor]] = compile_torch_graph(
            trace(part, device),
            examples(part, device),
            Options.parse(None),
            kind="lazy tensors",
            placement=self._placement,
            shardings=shardings,
            compiled=made.append,
        )
        steps = made[0].steps if len(made) == 1 else None
        self._on_buffers = None if steps is None else steps.on_buffers()
        self._name = (made[0].name if made else "") or "lazy tensors"

    def run(self, part: Slice) -> list[Buffer]:
        """The outputs' buffers. Those of inputs that are replaced are gone."""
        with shown_as(self._name):
            return self._run(part)

    def _run(self, part: Slice) -> list[Buffer]:
        if self._on_buffers is None:
            return self._run_with_torch(part)
        placement = self._placement
        stream = None
        if placement.has_streams:
            stream = placement.stream()
            # Torch may still read values whose memory the program writes into.
            wait_for_torch(placement)
        buffers = [v.buffer for v in part.inputs if v.buffer is not None]
        buffers += [import_tensor(n, placement, stream) for n in self._numbers_and_keys(part)]
        results, changed = self._on_buffers(buffers, stream)
        new = iter(results)
        return [next(new) if r < 0 else changed[r] for r in part.replaced]

    def _run_with_torch(self, part: Slice) -> list[Buffer]:
        """The outputs' buffers, where torch runs a part of the program, or its end."""
        replaced = {r for r in part.replaced if r >= 0}
        tensors = [memory.tensor_of(v) for v in part.inputs]
        tensors = [t.clone() if i in replaced else t for i, t in enumerate(tensors)]
        known = set(map(storage_id, tensors))
        results = iter(self._call(*tensors, *self._numbers_and_keys(part)))
        outputs = []
        for value, index in zip(part.outputs, part.replaced, strict=True):
            tensor = next(results) if index < 0 else tensors[index]
            if index < 0 and (storage_id(tensor) in known or tensor.storage_offset()):
                tensor = tensor.clone()
            known.add(storage_id(tensor))
            outputs.append(memory.buffer_of(tensor, *value.geometry[1:3]))
        return outputs

    def _numbers_and_keys(self, part: Slice) -> list[Tensor]:
        given = [torch.tensor(part.numbers, dtype=torch.float64)] if part.numbers else []
        given += [packed(part.keys)] if part.keys else []
        return [t.to(self._placement.torch_device) for t in given]


def compute(
    roots: Iterable[Value] | None = None,
    cause: str = "a value is asked for",
    accept: Callable[[Any], None] | None = None,
) -> None:
    """Give these values their buffers, or all values that live.

    Args:
        roots: the values; None for all but those of a program that could not be compiled before.
        cause: why, for the debug summary.
        accept: called with the key of the program before it is compiled or run; may raise.

    Raises:
        XlaDynamoError: see `errors`. What was pending still is.
    """
    with _alone():
        part = _cut(roots)
        if roots is None and job.joined() is not None and part and part.key not in _programs:
            # What errors have left in cycles is pending until it is collected, by each process at
            # its own time, and their programs must be the same.
            gc.collect()
            part = _cut(roots)
        growth.restart()
        if part is None:
            return
        modes.refuse_inside_a_full_graph()
        if topology.chooses_shardings() and part.key not in _programs:
            with clean_state(), drawing():
                was_sharded = auto_sharding.shard_inputs(part)
            part = (_cut(roots) or part) if was_sharded else part
        if accept is not None:
            accept(part.key)
        try:
            with clean_state(), drawing():
                _run_and_keep(_program_of(part, cause), part)
        except Exception as error:
            never = any(isinstance(v.buffer, placeholders.Placeholder) for v in part.inputs)
            # Of the others it may have memory enough another time.
            if never or not isinstance(error, ExecutionError):
                _left.update(part.outputs if roots is None else roots)
            placeholders.refuse(part.inputs)
            debug.name_records(error, part)
            raise


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A block in which no other thread computes."""
    start = time.perf_counter()
    with running:
        metrics.add_time("DeviceLockWait", time.perf_counter() - start)
        yield


def _cut(roots: Iterable[Value] | None) -> Slice | None:
    """The slice of these values, or of all but those of a program that could not be compiled."""
    with contents.lock:
        if roots is not None:
            roots = list(roots)
            manual_regions.refuse(roots)
        elif left_pending():
            roots = [v for v in _pending() if v not in _left and not manual_regions.is_shard(v)]
        return cut(roots)


@after_signals  # an interruption between would lose the values whose memory the program took
def _run_and_keep(program: "CompiledSlice", part: Slice) -> None:
    """Run a slice's program, and give its values their buffers."""
    kind, metric = _ONE_DEVICE if part.division is None else _PARTITIONED
    with metrics.timed(metric):
        buffers = program.run(part)
    metrics.increment(kind)
    metrics.increment("CreateDataHandles", len(buffers))
    metrics.add_sample("TensorsGraphSize", len(part.records))
    with contents.lock:
        for value, buffer in zip(part.outputs, buffers, strict=True):
            value.buffer, value.record = buffer, None
        if donations.marked:
            donations.give_away(part.inputs, part.replaced)


def _program_of(part: Slice, cause: str) -> "CompiledSlice":
    """A slice's program, which is compiled at its first run."""
    program = _programs.get(part.key)
    debug.tell(program is None, cause, part)
    if program is None:
        program = _programs[part.key] = CompiledSlice(part)
        metrics.add_sample("InputOutputAliasCount", sum(r >= 0 for r in part.replaced))
        if len(_programs) > _MOST_PROGRAMS:
            _programs.popitem(last=False)
    else:
        metrics.increment("CachedCompile")
        _programs.move_to_end(part.key)
    return program


def _pending() -> list[Value]:
    return [v for cell in contents.live_cells() if (v := cell.value).record is not None]


def left_pending() -> bool:
    """Whether values stay pending when all is computed, so that what they read must be kept."""
    if not (_left or manual_regions.were_entered()):
        return False
    return any(v in _left or manual_regions.is_shard(v) for v in _pending())


@contextlib.contextmanager
def tensors_behind(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """The elements of 'xla' tensors, computed: views of their memory, for as long as this is open.

    Nothing may be written there.
    """
    with running:
        values = [cell_of(t).value for t in tensors]
        if pending := [v for v in values if v.record is not None]:
            compute(pending)
        yield [memory.shown(t, memory.tensor_of(v)) for t, v in zip(tensors, values, strict=True)]
