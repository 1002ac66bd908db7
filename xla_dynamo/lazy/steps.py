"""Steps of a program on the 'xla' device: where they end, and what may and may not happen inside.

The names and meanings are those of PyTorch/XLA.
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_dynamo.errors import UnsupportedError
from xla_dynamo.lazy import contents, execution, memory, modes
from xla_dynamo.lazy.placeholders import Placeholder
from xla_dynamo.lazy.step_closures import run_closures
from xla_dynamo.metrics import save_metrics
from xla_dynamo.process_state import kept
from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.process_memory import named_as_in_pytorch_xla
from xla_dynamo.switches.pytorch_xla import METRICS_FILE


def sync(wait: bool = True) -> None:
    """End a step: compute all tensors of the 'xla' device that live, as one program.

    Call it once a step: equal steps are then equal programs, of which one is compiled. What
    `add_step_closure` was given runs afterwards.

    Args:
        wait: whether to wait for the results. The CPU's programs run in the thread that calls, so
            there it always does.

    Raises:
        XlaDynamoError: XLA cannot compile or run the program; see `xla_dynamo.errors`. What was
            pending still is.
    """
    execution.compute(cause="sync()")
    _end()


mark_step = sync


class _Tracer:
    def __init__(self) -> None:
        self.marked_step = False


_tracer = kept(_Tracer)


def set_tracer_marked_step(value: bool) -> None:
    """Note that a profiler's step ends with `sync()`: a loader then does not end it again."""
    _tracer.marked_step = value


def get_tracer_marked_step() -> bool:
    """Whether a profiler's step has ended the step, or will, for which a loader would wait."""
    return _tracer.marked_step


def end_for_loader() -> None:
    """End a step before the next batch, unless a profiler's step has ended it."""
    if _tracer.marked_step:
        _tracer.marked_step = False
    else:
        sync()


def _end() -> None:
    """Do what comes behind a step."""
    metrics.increment("MarkStep")
    if METRICS_FILE.get():
        save_metrics()
    run_closures()


class _Region(contextlib.ContextDecorator):
    """A block, or a function, whose operators are one program."""

    def __init__(
        self, full_graph: bool = False, name: str | None = None, most: int | None = None
    ) -> None:
        self._full_graph, self._name, self._most = full_graph, name, most
        self._graphs: set[Any] = set()
        self._entered = threading.local()  # a function may run in several threads, and recursively

    def __enter__(self) -> "_Region":
        if not modes.is_recording():  # inside another block, this one is part of its program
            execution.compute(cause="the beginning of a step")
        stack = contextlib.ExitStack()
        stack.enter_context(modes.recording(whole=self._full_graph))
        if self._name:
            stack.enter_context(torch.profiler.record_function(self._name))
        stacks = self._entered.__dict__.setdefault("stacks", [])
        stacks.append(stack)
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._entered.stacks.pop().close()
        if kind is None and not modes.is_recording():
            execution.compute(cause="the end of a step", accept=self._accept)
            _end()

    def _accept(self, key: Any) -> None:
        """Raise UnsupportedError for one program too many."""
        if self._most is not None and key not in self._graphs and len(self._graphs) >= self._most:
            raise UnsupportedError(
                f"{self._name or 'a compiled function'} has become more than {self._most} "
                "different graphs (max_different_graphs): its operators, or the sizes of its "
                "tensors, are others at each call; pad inputs to a few sizes, or raise the limit"
            )
        self._graphs.add(key)


def compile(
    f: Callable[..., Any] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    max_different_graphs: int | None = None,
) -> Any:
    """Make one program of each call of a function, from the operators that it runs.

    Unlike `torch.compile`, nothing is traced ahead: the function runs each time, its operators are
    recorded, and what they make is computed when it returns. `with xla_dynamo.compile():` does the
    same with a block.

    Args:
        f: a function or a module, of which a function is made; None for a block.
        full_graph: whether to raise where a value is asked for inside.
        name: how profilers name the block; the function's name unless given.
        max_different_graphs: how many different programs the calls may be.

    Raises:
        UnsupportedError: from the calls, where a value is asked for inside a full graph, or there
            are too many graphs.
    """
    if f is None:
        return _Region(full_graph, name, max_different_graphs)
    own_name = getattr(f, "__name__", type(f).__name__)
    region = _Region(full_graph, name or own_name, max_different_graphs)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        with region:
            return f(*args, **kwargs)

    return call


def step() -> _Region:
    """A block that is one step: `with xla_dynamo.step(): ...` computes it as one program."""
    return _Region()


def eager_mode(enable: bool) -> None:
    """Let operators on 'xla' tensors run one by one, at once, or record them again.

    Each is a program of its own, compiled at its first run and kept. Blocks under `step()` and
    `compile()` are recorded all the same.
    """
    if enable:
        execution.compute(cause="eager_mode(True)")
    modes.set_eager(enable)


def is_eager_mode() -> bool:
    """Whether operators run at once."""
    return modes.state.is_eager


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Compute these tensors and wait for them; the rest stays pending.

    Raises:
        XlaDynamoError: XLA cannot compile or run the program; see `xla_dynamo.errors`.
    """
    with execution.running:
        values = [contents.cell_of(t).value for t in tensors]
        if pending := [v for v in values if v.record is not None]:
            execution.compute(pending)
        for value in values:
            if value.buffer is not None and not isinstance(value.buffer, Placeholder):
                value.buffer.block_until_ready()


def unlazy_with_all(tensors: Sequence[torch.Tensor]) -> None:
    """Compute these tensors: all that is pending with them, in one program, if any of them is.

    Raises:
        XlaDynamoError: XLA cannot compile or run the program; see `xla_dynamo.errors`.
    """
    if any(contents.cell_of(t).value.record is not None for t in tensors):
        execution.compute(cause="a collective of torch.distributed")
    unlazy(tensors)


def get_memory_info(device: Any = "xla") -> dict[str, int]:
    """The memory of the device's computed tensors, in bytes.

    Args:
        device: as in PyTorch/XLA; there is one.

    Returns:
        `bytes_used`, and, where the platform tells, `bytes_limit` and `peak_bytes_used`.
    """
    told = memory.placement().device.memory_stats() or {}
    buffers = {id(b): b.nbytes for c in contents.live_cells() if (b := c.value.buffer) is not None}
    return {"bytes_used": sum(buffers.values()), **named_as_in_pytorch_xla(told)}
