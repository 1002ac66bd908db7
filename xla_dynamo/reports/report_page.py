"""A report as a self-contained HTML page, without scripts and with nothing to load."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rich.table import Table

from xla_dynamo.events import BuiltExecutable, CompilationRecord
from xla_dynamo.reports.memory_timeline import picture_of_calls, picture_of_program
from xla_dynamo.reports.record import CompilationLog

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; width: 100%; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .6rem; text-align: left; }
th, td { vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
td { overflow-wrap: break-word; white-space: pre-wrap; }
th { white-space: nowrap; }
pre { background: #8881; border-radius: .4rem; overflow: auto; max-height: 30rem; padding: .8rem; }
summary { cursor: pointer; font-weight: 600; margin: .4rem 0; }
.eager { background: #f802; }
.stages { display: flex; height: 1.6rem; margin: .5rem 0; }
.stages span { color: #fff; font-size: .75rem; overflow: hidden; padding: .2rem .4rem; }
.stages span { white-space: nowrap; }
"""
_COLOURS = ("#33658a", "#2f9c95", "#bc6c25", "#9b2226")


def page(report: CompilationLog, tables: Sequence[Table]) -> str:
    """The page: what is printed, then every operator, advice, StableHLO and optimized HLO."""
    parts = ["<h1>xla_dynamo.explain</h1>", f"<p>{escape(report.summary())}</p>", _stages(report)]
    parts += [_of_table(table) for table in tables if table.row_count]
    advice = [(b.line, b.reason, b.advice) for b in report.graph_breaks if b.advice]
    if advice:
        parts.append("<h2>What Dynamo says of the graph breaks</h2>")
        parts += [_folded(f"{reason} at {line}", _code(text)) for line, reason, text in advice]
    parts += _memory(report)
    parts.append("<h2>Operators</h2>")
    parts += [_folded(str(graph), _operators(graph)) for graph in report.graphs]
    parts.append("<h2>Programs</h2>")
    parts += [_program(built) for built in report.executables]
    return html_page("xla_dynamo.explain", parts)


def html_page(title: str, parts: Sequence[str]) -> str:
    """A page of a title and parts that are HTML."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


def _stages(report: CompilationLog) -> str:
    """Compile time as a bar."""
    whole = sum(report.seconds.values())
    if not whole:
        return ""
    spans = [
        f'<span style="background:{colour};width:{100 * s / whole:.2f}%" '
        f'title="{name}: {s:.2f} s">{name} {s:.2f} s</span>'
        for (name, s), colour in zip(report.seconds.items(), _COLOURS, strict=True)
    ]
    return f'<div class="stages">{"".join(spans)}</div>'


def _of_table(table: Table) -> str:
    numeric = [column.justify == "right" for column in table.columns]
    rows = zip(*(column.cells for column in table.columns), strict=True)
    heads = [str(column.header) for column in table.columns]
    return f"<h2>{escape(str(table.title))}</h2>" + table_of_html(heads, rows, numeric)


def table_of_html(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    numeric: Sequence[bool] = (),
    marked: Sequence[bool] = (),
) -> str:
    """A table as HTML; `numeric` says which columns are numbers, `marked` which rows stand out."""

    def cell(tag: str, index: int, text: Any) -> str:
        kind = ' class="number"' if index < len(numeric) and numeric[index] else ""
        return f"<{tag}{kind}>{escape('' if text is None else str(text))}</{tag}>"

    def row(tag: str, cells: Sequence[Any], mark: bool = False) -> str:
        kind = ' class="eager"' if mark else ""
        return f"<tr{kind}>{''.join(cell(tag, i, c) for i, c in enumerate(cells))}</tr>"

    marks = [*marked]
    body = [row("td", cells, i < len(marks) and marks[i]) for i, cells in enumerate(rows)]
    return f"<table><thead>{row('th', heads)}</thead><tbody>{''.join(body)}</tbody></table>"


def _memory(report: CompilationLog) -> list[str]:
    """Pictures: the process over the calls, and each program over its schedule."""
    calls = picture_of_calls(report.memory_timeline)
    parts = [f"<h2>Memory of the process, before and after each call</h2>{calls}"] if calls else []
    for memory in report.memory:
        title = f"memory of {memory.name}, at most {memory.peak_bytes:,} bytes"
        parts.append(_folded(title, picture_of_program(memory)))
    return parts


def _operators(graph: CompilationRecord) -> str:
    rows = [(o.name, o.decomposed_from, o.line, o.eager) for o in graph.operators]
    heads = ("operator", "decomposed from", "where", "in eager torch, since")
    return table_of_html(heads, rows, marked=[o.eager is not None for o in graph.operators])


def _program(built: BuiltExecutable) -> str:
    stablehlo = _folded("StableHLO", _code(built.stablehlo))
    optimized = _folded("optimized HLO", _code(built.hlo)) if built.executable else ""
    return _folded(f"executable of {built.name}", stablehlo + optimized)


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"
