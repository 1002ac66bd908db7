"""The report of `explain` as tables: graphs, graph breaks, operators, executables, costs, times."""

import io
import itertools
import linecache
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from xla_dynamo.events import BuiltExecutable, CompilationRecord
from xla_dynamo.reports.line_costs import LineCost, line_costs
from xla_dynamo.reports.memory import ProgramMemory
from xla_dynamo.reports.record import CompilationLog
from xla_dynamo.reports.report_page import page
from xla_dynamo.reports.watched_calls import WatchedCalls

# How many lines and tensors of each program are told, and how many operators of a line.
_LINES, _NAMES = 3, 4


class Report(CompilationLog):
    """A record that prints well: as tables in a terminal, as a page in a notebook."""

    def html(self) -> str:
        """A page that stands alone, with every operator, StableHLO and optimized HLO."""
        return page(self, self.tables())

    def __rich__(self) -> Group:
        tables = [t for t in self.tables() if t.row_count]
        return Group(Text(self.summary(), style="bold"), *tables)

    def __str__(self) -> str:
        width = max(shutil.get_terminal_size((120, 24)).columns, 100)
        console = Console(file=io.StringIO(), width=width)
        console.print(self)
        assert isinstance(console.file, io.StringIO)
        return console.file.getvalue()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.html()

    def tables(self) -> list[Table]:
        """What is printed, and stands in the page."""
        costs = [(built, line_costs(built)) for built in self.executables]
        return [
            _table("Advice", ("what was found", "what to do"), self._advice_rows()),
            _table(
                "Graph breaks",
                ("where", "why"),
                ((b.line, b.reason) for b in self.graph_breaks),
            ),
            _table(
                "Recompilations",
                ("function", "why"),
                ((self.place(f), f.recompiled) for f in self.recompiles),
            ),
            _table(
                "Operators in eager torch",
                ("graph", "operator", "where", "why"),
                ((g.number, o.name, o.line, o.eager) for g, o in self.eager_operators),
            ),
            _table(
                "Graphs",
                ("graph", "what", "function", "operators", "decomposed from", "parts"),
                map(self._graph_row, self.graphs),
                numbers=(0, 3, 5),
            ),
            _table(
                "Dynamic sizes without buckets",
                ("graph", "bounds", "why"),
                (
                    (n.graph.number, ", ".join(f"{k} = {v}" for k, v in n.bounds.items()), n.reason)
                    for n in self.not_bucketed
                ),
                numbers=(0,),
            ),
            _table(
                "Executables",
                (
                    "graph",
                    "part",
                    "sizes",
                    "why",
                    "FLOP",
                    "bytes moved",
                    "temporary bytes",
                    "lowering",
                    "XLA",
                ),
                itertools.starmap(_executable_row, costs),
                numbers=(0, 1, 4, 5, 6, 7, 8),
            ),
            _table(
                "The most expensive lines, estimated from FLOPs and bytes",
                ("graph", "share", "FLOP", "bytes", "where", "operators"),
                _line_rows(costs),
                numbers=(0, 1, 2, 3),
            ),
            _table(
                "Calls",
                ("graph", "sizes", "calls", "time", "computed / asked", "through Python"),
                map(_calls_row, self.calls),
                numbers=(0, 2, 3, 4, 5),
            ),
            _table(
                "Copies at the border",
                ("graph", "argument", "bytes", "calls", "why"),
                (
                    (
                        c.built.graph.number,
                        self.argument(c.built, i),
                        f"{o.bytes:,}",
                        o.times,
                        o.reason,
                    )
                    for c in self.calls
                    for i, o in c.copies.items()
                ),
                numbers=(0, 2, 3),
            ),
            _table(
                "Memory of a run",
                ("program", "peak", "arguments", "results", "aliased", "temporary", "at the peak"),
                map(_memory_row, self.memory),
                numbers=(1, 2, 3, 4, 5),
            ),
            _table(
                "Compile time",
                (*self.seconds, "all"),
                [[f"{s:.2f} s" for s in (*self.seconds.values(), sum(self.seconds.values()))]],
            ),
        ]

    def _advice_rows(self) -> Iterable[Iterable[Any]]:
        return ((one.about, one.text) for one in self.advice)

    def _graph_row(self, graph: CompilationRecord) -> Iterable[Any]:
        frames = [f for f in self.frames if f.compile_id == graph.compile_id]
        origins = Counter(o.decomposed_from for o in graph.operators if o.decomposed_from)
        function = self.place(frames[0]) if frames else ""
        operators = len(graph.operators)
        return graph.number, graph.kind, function, operators, _listed(origins), graph.parts


def _executable_row(built: BuiltExecutable, costs: Sequence[LineCost]) -> Iterable[Any]:
    lowering, xla = built.seconds
    return (
        built.graph.number,
        built.part,
        ", ".join(f"{name} = {value}" for name, value in built.sizes.items()),
        built.reason,
        _short(sum(line.flops for line in costs)),
        _short(sum(line.bytes for line in costs)),
        _short(built.cost.temporary_bytes),
        f"{lowering:.3f} s",
        f"{xla:.3f} s",
    )


def _line_rows(
    costs: Iterable[tuple[BuiltExecutable, Sequence[LineCost]]],
) -> Iterable[Iterable[Any]]:
    for built, lines in costs:
        for cost in lines[:_LINES]:
            where = f"{cost.file}:{cost.line}" if cost.file else "backward or optimizer"
            text = linecache.getline(cost.file, cost.line).strip() if cost.file else ""
            yield (
                built.graph.number,
                f"{100 * cost.share:.0f}%",
                _short(cost.flops),
                _short(cost.bytes),
                f"{where}\n{text}" if text else where,
                ", ".join(cost.operators[:_NAMES]),
            )


def _calls_row(calls: WatchedCalls) -> Iterable[Any]:
    built = calls.built
    return (
        built.graph.number,
        ", ".join(f"{name} = {value}" for name, value in built.sizes.items()),
        calls.count,
        f"{calls.seconds:.3f} s",
        f"{calls.wasted:.2f}" if calls.asked else "",
        calls.through_python or "",
    )


def _memory_row(memory: ProgramMemory) -> Iterable[Any]:
    held = [
        f"{_short(one.bytes)} {one.kind} {one.shown}"
        + "".join(f" ({p.file}:{p.line})" for p in one.places[:1] if p.file)
        for one in memory.held[:_LINES]
    ]
    numbers = (
        memory.peak_bytes,
        memory.argument_bytes,
        memory.result_bytes,
        memory.alias_bytes,
        memory.temporary_bytes,
    )
    return memory.name, *map(_short, numbers), "\n".join(held)


def _listed(names: Counter[str]) -> str:
    """The three most frequent, with their counts."""
    shown = ", ".join(f"{name} ({n})" for name, n in names.most_common(3))
    return shown + (", ..." if len(names) > 3 else "")


def _short(number: float) -> str:
    """Three digits and a prefix: 12.3 M."""
    for prefix in ("", "k", "M", "G"):
        if abs(number) < 999.5:
            return f"{number:.3g} {prefix}".rstrip()
        number /= 1000
    return f"{number:,.3g} T"


def _table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[Any]],
    *,
    numbers: Iterable[int] = (),
) -> Table:
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        right = index in set(numbers)
        # Places and reasons are read whole: they fold, and are not cut.
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return table
