"""`xla_dynamo.profile()`: which lines of the user's program the time of its programs goes to."""

import collections
import contextlib
import dataclasses
import linecache
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from xla_dynamo.errors import OptionError
from xla_dynamo.reports.hlo_places import Place, places_of
from xla_dynamo.reports.report_page import html_page, table_of_html
from xla_dynamo.reports.trace_events import Operation, covered, runs_of
from xla_dynamo.runtime.clients import live_executables
from xla_dynamo.runtime.executables import text_and_lines

_UNKNOWN = Place("", 0)
_MOST_NAMES = 6
_NUMBER = re.compile(r"_\d+$")  # of a node among those of one operator


@dataclasses.dataclass(frozen=True, slots=True)
class LineTime:
    """The time of what one line of the user's program computes.

    Attributes:
        file, line: where it is; "" and 0 for what has no line of its own: what backwards and
            optimizers compute, and what XLA adds.
        text: the line.
        operators: the names of the graph's nodes there.
        seconds: the time, of all runs. Where an operation is fused of several lines, each has an
            equal part of its time; where operations ran at once, on several threads or devices,
            theirs are added.
        runs: how often an operation of the line ran.
        fused: with how many other lines it shares operations.
    """

    file: str
    line: int
    text: str
    operators: tuple[str, ...]
    seconds: float
    runs: int
    fused: int


class Profile(contextlib.ContextDecorator):
    """What ran in a block: see `profile`.

    Attributes:
        lines: the lines of the user's program, those of the most time first.
        wall: seconds of the block.
        covered: seconds of it in which operations of programs ran; the rest is Python, torch, and
            moving tensors.
        programs: how many runs of programs there were.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        """Take a folder for the trace; without one nothing is left of it."""
        self.lines: list[LineTime] = []
        self.wall = self.covered = 0.0
        self.programs = 0
        self._folder = None if folder is None else pathlib.Path(folder)
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> "Profile":
        """Begin to trace."""
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        self._inside = contextlib.ExitStack()
        where = self._folder or self._inside.enter_context(tempfile.TemporaryDirectory())
        self._where = pathlib.Path(where)
        if any(self._where.rglob("*.xplane.pb")):
            raise OptionError(f"{self._where} has a trace already: give profile() another folder")
        try:
            jax.profiler.start_trace(
                self._where,
                create_perfetto_trace=self._folder is not None,
                profiler_options=options,
            )
        except RuntimeError as error:
            self._inside.close()
            raise OptionError(f"a trace runs already: end it before profile() ({error})") from error
        self._start = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the trace, and read it."""
        self.wall = time.perf_counter() - self._start
        with self._inside:
            jax.profiler.stop_trace()
            if error is None:
                runs = runs_of(self._where)
                self.programs, self.covered = len(runs), covered(runs) / 1e9
                self.lines = _lines(runs)

    def table(self, most: int = 20) -> Table:
        """So many lines of the most time, as a table of rich."""
        title = (
            f"{self.wall * 1e3:.1f} ms, of which programs ran for {self.covered * 1e3:.1f}, "
            f"in {self.programs} runs"
        )
        table = Table(title=title)
        for column in ("ms", "%", "runs", "where", "line", "operators"):
            table.add_column(column, justify="right" if column in ("ms", "%", "runs") else "left")
        for row in self._rows(most):
            table.add_row(*row)
        return table

    def _rows(self, most: int | None = None) -> Iterable[Sequence[str]]:
        whole = sum(line.seconds for line in self.lines) or 1.0
        for line in self.lines[:most]:
            where = f"{line.file}:{line.line}" if line.file else "no line"
            where += f" (fused with {line.fused} others)" if line.fused else ""
            share = f"{100 * line.seconds / whole:.1f}"
            names = ", ".join(line.operators[:_MOST_NAMES])
            names += ", ..." if len(line.operators) > _MOST_NAMES else ""
            yield f"{line.seconds * 1e3:.3f}", share, str(line.runs), where, line.text, names

    def __str__(self) -> str:
        console = Console(width=160)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the lines as an HTML page that loads nothing."""
        heads = ("ms", "%", "runs", "where", "line", "operators")
        table = table_of_html(heads, self._rows(), numeric=(True, True, True))
        summary = str(self.table(0).title)
        text = html_page(
            "xla_dynamo.profile", [f"<h1>xla_dynamo.profile</h1><p>{summary}</p>", table]
        )
        pathlib.Path(path).write_text(text)


def profile(folder: str | os.PathLike[str] | None = None) -> Profile:
    """Tell where the time of a block's programs goes, by lines of the user's program.

    `with xla_dynamo.profile() as p: step(x)`, then `print(p)`, `p.lines` or `p.save("page.html")`;
    or `@xla_dynamo.profile()` on a function. Let what is compiled be called once before, unless
    compiling is of interest. Of tensors of the device 'xla' call `sync()` in the block. Programs
    from the disk cache may have the lines of the process that compiled them.

    Args:
        folder: is left the trace, for XProf and TensorBoard, and beside it
            `perfetto_trace.json.gz` for Perfetto and Chrome.

    Raises:
        OptionError: where the block begins: another trace of JAX's runs, or the folder has one.
    """
    return Profile(folder)


def _lines(runs: Sequence[Sequence[Operation]]) -> list[LineTime]:
    """The time of each line, by the programs that may have run."""
    known: list[Mapping[str, tuple[Place, ...]]] = []
    if runs:
        known = [places_of(*text_and_lines(loaded)) for loaded in live_executables()]
    seconds: dict[tuple[str, int], float] = collections.defaultdict(float)
    counts: collections.Counter[tuple[str, int]] = collections.Counter()
    names: dict[tuple[str, int], set[str]] = collections.defaultdict(set)
    beside: dict[tuple[str, int], set[tuple[str, int]]] = collections.defaultdict(set)
    chosen: dict[frozenset[str], Mapping[str, tuple[Place, ...]]] = {}
    for run in runs:
        here = frozenset(op.name for op in run)
        if here not in chosen:
            chosen[here] = _program_of(here, known)
        for op in run:
            places = chosen[here].get(op.name) or (_UNKNOWN,)
            keys = {(p.file, p.line) for p in places}
            for place in places:
                names[place.file, place.line].add(_NUMBER.sub("", place.operators))
            for key in keys:
                seconds[key] += op.alone / 1e9 / len(keys)
                counts[key] += 1
                beside[key] |= keys - {key}
    return [
        LineTime(
            file,
            line,
            linecache.getline(file, line).strip() if file else "",
            tuple(sorted(names[file, line] - {""})),
            time_of,
            counts[file, line],
            len(beside[file, line]),
        )
        for (file, line), time_of in sorted(seconds.items(), key=lambda item: -item[1])
    ]


def _program_of(
    names: frozenset[str], known: Sequence[Mapping[str, tuple[Place, ...]]]
) -> Mapping[str, tuple[Place, ...]]:
    """The program whose instructions a run has: the one that has most of them, and few others."""
    best: Any = max(known, key=lambda one: (len(names & one.keys()), -len(one)), default={})
    return best
