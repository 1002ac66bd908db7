"""`xla_dynamo.profile()`: which lines of the user's program the time of its programs goes to."""

import contextlib
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from types import TracebackType

import jax
import torch
from rich.console import Console
from rich.table import Table

from xla_dynamo.errors import ExecutionError, OptionError, StorageError
from xla_dynamo.reports.chrome_trace import add_to_trace, write_trace
from xla_dynamo.reports.line_times import (
    LineTime,
    ModuleTime,
    OperationTime,
    Programs,
    line_times,
    module_times,
    operation_times,
)
from xla_dynamo.reports.peaks import Peaks, peaks
from xla_dynamo.reports.profile_page import profile_page
from xla_dynamo.reports.trace_events import Operation, Trace, read_trace, spans_of
from xla_dynamo.reports.wall_time import TorchEvent, WallTime, torch_events, wall_time
from xla_dynamo.runtime import forks
from xla_dynamo.runtime.traces import make_folder, start_trace, stop_trace
from xla_dynamo.torch_private import is_profiling

_MOST_NAMES = 6
_MOST_OPERATIONS = 200_000  # that are kept for traces
_NUMBERS = ("ms", "%", "backward", "GFLOP/s", "GB/s", "% of bound", "runs")
_HEADS = (*_NUMBERS, "where", "line", "operators")


class Profile(contextlib.ContextDecorator):
    """What ran in a block: see `profile`.

    Attributes:
        lines: the lines of the user's program, those of the most time first.
        modules: the modules of the model by their paths, each with those inside it.
        operations: the instructions of programs, those of the most time first.
        times: where the wall time went.
        wall: seconds of the block.
        covered: seconds of it in which programs ran.
        programs: how many runs of programs there were; each device has its own.
        peaks: the machine's measured peaks; None where nothing ran.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Take a folder for the trace; without one nothing is left of it."""
        self._folder = None if folder is None else pathlib.Path(folder)
        self._inside, self._start = contextlib.ExitStack(), 0
        self._torch: torch.profiler.profile | None = None
        self._forget()

    def _forget(self) -> None:
        self.lines: list[LineTime] = []
        self.modules: list[ModuleTime] = []
        self.operations: list[OperationTime] = []
        self.times = WallTime()
        self.programs = 0
        self.peaks: Peaks | None = None
        self._trace, self._known = Trace(0, []), Programs([])

    @property
    def wall(self) -> float:
        """Seconds of the block."""
        return self.times.wall

    @property
    def covered(self) -> float:
        """Seconds of the block in which programs ran."""
        return self.times.programs

    def __enter__(self) -> "Profile":
        """Begin to trace."""
        if forks.forked:
            raise ExecutionError(forks.MESSAGE)
        if self._start:
            raise OptionError("this profile() runs already: one object is for one block at a time")
        folder = self._folder
        if folder is not None:
            make_folder(folder)
            if any(folder.rglob("*.xplane.pb")):
                raise OptionError(f"{folder} has a trace already: give profile() another folder")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with contextlib.ExitStack() as inside:
            where = pathlib.Path(inside.enter_context(tempfile.TemporaryDirectory()))
            try:
                start_trace(where, options)
            except RuntimeError as error:
                if isinstance(error, StorageError):
                    raise
                message = f"a trace runs already: end it before profile() ({error})"
                raise OptionError(message) from error
            self._where, self._torch = where, None
            if not is_profiling():
                self._torch = torch.profiler.profile(
                    activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
                )
                try:
                    self._torch.__enter__()
                except BaseException:
                    stop_trace()
                    raise
            self._start = time.time_ns()
            self._inside = inside.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the trace, and read it.

        Raises:
            StorageError: the trace cannot be written.
            ExecutionError: somebody else has ended it.
        """
        block = self._start, time.time_ns()
        self._start = 0
        with self._inside:
            if not is_profiling():  # one of the user's began inside, and has ended ours with itself
                self._torch = None
            if self._torch is not None:
                self._torch.__exit__(None, None, None)
            self._forget()
            try:
                stop_trace()
            except RuntimeError as stopped:
                if error is not None:
                    return  # which tells more
                if isinstance(stopped, StorageError):
                    raise
                message = "the trace of this profile() was ended inside its block"
                raise ExecutionError(message) from stopped
            if error is None:
                self._read(block)
        self._torch = None

    def _read(self, block: tuple[int, int]) -> None:
        trace = read_trace(self._where)
        events = self._events()
        spans = [(trace.began + a, trace.began + b) for a, b in spans_of(trace.runs)]
        self.times, self.programs = wall_time(block, spans, events), len(trace.runs)
        if trace.runs:
            self.peaks, self._known = peaks(), Programs()
            self.operations = operation_times(trace.runs, self._known, self.peaks)
            self.lines = line_times(self.operations)
            self.modules = module_times(self.operations)
            self._trace = Trace(trace.began, _latest(trace.runs))
        if self._folder is not None:
            try:
                shutil.copytree(self._where, self._folder, dirs_exist_ok=True)
            except OSError as error:
                message = f"the trace cannot be written into {self._folder}: {error}"
                raise StorageError(message) from error
            path, most = self._folder / "trace.json.gz", self.peaks or Peaks({"f32": 1.0}, 1.0)
            write_trace(path, self._trace, self._known, most, events or ())

    def _events(self) -> list[TorchEvent] | None:
        if self._torch is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "torch.json")
            self._torch.export_chrome_trace(str(path))
            return torch_events(path)

    def add_to(self, path: str | os.PathLike[str]) -> None:
        """Put each operation into a Chrome trace that `torch.profiler` has exported.

        The clocks are one: an operation lies inside the event of the call that ran it.

        Args:
            path: of the file that `export_chrome_trace` wrote, of a profiler around this one.
        """
        if self.peaks is not None:
            add_to_trace(pathlib.Path(path), self._trace, self._known, self.peaks)

    def table(self, most: int = 20) -> Table:
        """So many lines of the most time, as a table of rich."""
        table = Table(title=f"{self.times}; {self.programs} runs of programs")
        for column in _HEADS:
            table.add_column(column, justify="right" if column in _NUMBERS else "left")
        for row in self._rows(most):
            table.add_row(*row)
        return table

    def _rows(self, most: int | None = None) -> Iterable[Sequence[str]]:
        whole = sum(line.seconds for line in self.lines) or 1.0
        for line in self.lines[:most]:
            # A table has no room for whole paths, and would cut their ends off.
            where = pathlib.Path(line.where).name if line.file else line.where
            where += f" (fused with {line.fused} others)" if line.fused else ""
            names = ", ".join(line.operators[:_MOST_NAMES])
            names += ", ..." if len(line.operators) > _MOST_NAMES else ""
            yield (
                f"{line.seconds * 1e3:.3f}",
                f"{100 * line.seconds / whole:.1f}",
                f"{line.backward * 1e3:.3f}" if line.backward else "",
                f"{line.flops_rate / 1e9:.1f}",
                f"{line.bytes_rate / 1e9:.1f}",
                f"{100 * line.share:.0f}",
                str(line.runs),
                where,
                line.text,
                names,
            )

    def __str__(self) -> str:
        console = Console(width=200)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an HTML page, which loads nothing.

        It has the summary, the lines with their operations, the modules, the roofline, and a
        picture of the last run of each program.
        """
        latest = {}
        for run in self._trace.runs:
            program = self._known.of(run)
            latest[id(program)] = (program, run)
        text = profile_page(
            self.times,
            self.programs,
            self.lines,
            self.modules,
            self.operations,
            self.peaks,
            list(latest.values()),
        )
        pathlib.Path(path).write_text(text, encoding="utf-8")


def _latest(runs: Sequence[list[Operation]]) -> list[list[Operation]]:
    """The last runs, of at most so many operations."""
    kept: list[list[Operation]] = []
    count = 0
    for run in reversed(runs):
        count += len(run)
        if kept and count > _MOST_OPERATIONS:
            break
        kept.append(run)
    return kept[::-1]


def profile(folder: str | os.PathLike[str] | None = None) -> Profile:
    """Tell where the time of a block goes, by lines of the user's program and by modules.

    `with xla_dynamo.profile() as p: step(x)`, then `print(p)`, `p.lines`, `p.modules`, `p.times` or
    `p.save("page.html")`; or `@xla_dynamo.profile()` on a function. Let what is compiled be called
    once before, unless compiling is of interest. Of tensors of the device 'xla' call `sync()` in
    the block. Programs from the disk cache may have the lines of the process that compiled them.

    Beside time there are floating-point operations, bytes, and the share of what the machine can do
    at most, by the roofline model (Williams, Waterman and Patterson, 2009). Its peaks are measured
    once, in half a second, and kept in the disk cache.

    Args:
        folder: is left `trace.json.gz`, for Perfetto and Chrome, and the trace that XProf and
            TensorBoard read.

    Raises:
        OptionError: where the block begins: another trace of JAX's runs, or the folder has one.
        StorageError: where the block begins: nothing can be written into the folder; or where it
            ends: the trace cannot be written.
        ExecutionError: where the block begins: this process is a fork of one that ran programs.
    """
    if callable(folder):
        raise TypeError("profile takes a folder or nothing: write @xla_dynamo.profile()")
    return Profile(folder)
