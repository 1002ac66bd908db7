"""A profile as one HTML page, which loads nothing and needs no script."""

import pathlib
from collections import Counter
from collections.abc import Sequence
from html import escape

from xla_dynamo.reports.line_times import LineTime, ModuleTime, OperationTime, ProgramText
from xla_dynamo.reports.peaks import Peaks
from xla_dynamo.reports.profile_pictures import (
    colours_of,
    roofline,
    seconds_text,
    stacked_bar,
    timeline,
)
from xla_dynamo.reports.profile_style import STYLE
from xla_dynamo.reports.trace_events import Operation
from xla_dynamo.reports.wall_time import WallTime

_MARK, _EMPTY = '<span class="mark">', "<span>"
_MOST_KINDS, _MOST_LINES, _MOST_OPERATIONS = 7, 300, 40


def profile_page(
    times: WallTime,
    runs: int,
    lines: Sequence[LineTime],
    modules: Sequence[ModuleTime],
    operations: Sequence[OperationTime],
    peaks: Peaks | None,
    latest: Sequence[tuple[ProgramText, Sequence[Operation]]],
) -> str:
    """The page; `latest` has the last run of each program."""
    kinds: Counter[str] = Counter()
    for op in operations:
        kinds[op.kind] += op.seconds  # type: ignore[assignment]
    colours = colours_of([kind for kind, _ in kinds.most_common()])
    parts = [f"<h1>xla_dynamo profile</h1><p class='dim'>{escape(str(times))}</p>"]
    parts.append(_cards(times, runs, operations, peaks))
    parts.append(
        '<div class="two">'
        + _section("Wall time", stacked_bar(times.parts))
        + _section("Operations of programs, by kind", stacked_bar(_largest(kinds)))
        + "</div>"
    )
    about = (
        "Open a line for its operations. The darker part of a bar is the gradient's. The share of "
        "the bound is of the roofline's: 100% is what this machine can do at most."
    )
    parts.append(_section("Time by line", _lines(lines), about))
    if peaks is not None:
        about = (
            f"Each operation is a dot, as large as its time. Below the slope the memory is the "
            f"bound ({peaks.bytes / 1e9:.1f} GB/s), below the roof the processor."
        )
        picture = roofline(operations, peaks, colours)
        parts.append(
            '<div class="two">'
            + _section("Time by module", f'<div class="tree">{_tree(modules)}</div>')
            + _section("Roofline", picture, about)
            + "</div>"
        )
    for program, run in latest:
        picture = f'<div class="wide">{timeline(program, run, colours)}</div>'
        title = f"Last run of {program.name}"
        parts.append(_section(title, picture, f"{len(run)} operations, a row for each thread"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>xla_dynamo profile</title><style>{STYLE}</style></head>\n"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _section(title: str, content: str, about: str = "") -> str:
    about = f'<p class="dim">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{about}{content}</section>"


def _cards(
    times: WallTime, runs: int, operations: Sequence[OperationTime], peaks: Peaks | None
) -> str:
    flops = sum(op.flops for op in operations)
    seconds = times.programs or 1.0
    share = 100 * times.programs / times.wall if times.wall else 0.0
    cards = [
        (seconds_text(times.wall), "wall time"),
        (f"{share:.1f}%", "in programs"),
        (f"{runs:,}", "runs of programs"),
        (f"{flops / seconds / 1e9:,.1f}", "GFLOP/s in programs"),
    ]
    if peaks is not None:
        cards.append((f"{peaks.flops['f32'] / 1e9:,.0f}", "GFLOP/s measured peak, float32"))
        cards.append((f"{peaks.bytes / 1e9:,.1f}", "GB/s measured peak of copies"))
    texts = (f"<div><b>{value}</b><span>{escape(name)}</span></div>" for value, name in cards)
    return f'<div class="cards">{"".join(texts)}</div>'


def _largest(kinds: "Counter[str]") -> list[tuple[str, float]]:
    most = [(kind, float(seconds)) for kind, seconds in kinds.most_common(_MOST_KINDS)]
    rest = sum(kinds.values()) - sum(seconds for _, seconds in most)
    return [*most, ("others", rest)] if len(kinds) > _MOST_KINDS else most


def _lines(lines: Sequence[LineTime]) -> str:
    if not lines:
        return "<p>No program ran.</p>"
    longest = lines[0].seconds or 1.0
    whole = sum(line.seconds for line in lines) or 1.0
    names = ("", "time", "line", "of all", "GFLOP/s", "GB/s", "of bound")
    heads = "".join(f"<div>{name}</div>" for name in names[:3])
    heads += "".join(f"<span>{name}</span>" for name in names[3:])
    rows = [f'<div class="row head">{heads}</div>']
    rows += [_line(line, longest, whole) for line in lines[:_MOST_LINES]]
    if len(lines) > _MOST_LINES:
        rest = sum(line.seconds for line in lines[_MOST_LINES:])
        rows.append(f"<p>{len(lines) - _MOST_LINES} more lines: {seconds_text(rest)}</p>")
    return "".join(rows)


def _line(line: LineTime, longest: float, whole: float) -> str:
    numbers = (
        f"{100 * line.seconds / whole:.1f}%",
        f"{line.flops_rate / 1e9:,.1f}",
        f"{line.bytes_rate / 1e9:,.1f}",
        f"{100 * line.share:.0f}%",
    )
    return (
        '<details class="line"><summary class="row"><span class="mark"></span>'
        f"{_share(line.seconds, line.backward, longest)}"
        f'<div class="place"><code>{escape(line.text or line.where)}</code>'
        f'<small title="{escape(line.where)}">{escape(_about(line))}</small></div>'
        f"{''.join(f'<span>{n}</span>' for n in numbers)}</summary>"
        f'<div class="inner">{_operations(line)}</div></details>'
    )


def _share(seconds: float, backward: float, longest: float) -> str:
    return (
        f'<div class="share"><i style="width:{100 * seconds / longest:.2f}%"></i>'
        f'<i class="back" style="width:{100 * backward / longest:.2f}%"></i>'
        f"<em>{seconds_text(seconds)}</em></div>"
    )


def _about(line: LineTime) -> str:
    path = pathlib.PurePath(line.file)
    where = "/".join(path.parts[-3:]) + f":{line.line}" if line.file else ""
    parts = [where, ", ".join(line.operators[:6])]
    if line.fused:
        parts.append(f"fused with {line.fused} other lines")
    return " · ".join(part for part in parts if part)


def _operations(line: LineTime) -> str:
    heads = ("time", "runs", "GFLOP/s", "GB/s", "of bound", "what", "module", "fused of")
    cells = "".join(f'<th class="{"n" if n < 5 else ""}">{h}</th>' for n, h in enumerate(heads))
    rows = [f"<tr>{cells}</tr>"]
    for op in line.operations[:_MOST_OPERATIONS]:
        files = (f"{pathlib.PurePath(p.file).name}:{p.line}" for p in op.places if p.file)
        modules = dict.fromkeys(p.module for p in op.places if p.module)
        others = escape(", ".join(dict.fromkeys(files)))
        numbers = (
            seconds_text(op.seconds),
            str(op.runs),
            f"{op.flops_rate / 1e9:,.1f}",
            f"{op.bytes_rate / 1e9:,.1f}",
            f"{100 * op.share:.0f}%",
        )
        texts = (
            f"{escape(op.kind)}<br><code>{escape(op.name)}</code>",
            escape(", ".join(modules)),
            others,
        )
        cells = "".join(f'<td class="n">{n}</td>' for n in numbers)
        rows.append(f"<tr>{cells}{''.join(f'<td>{t}</td>' for t in texts)}</tr>")
    rest = line.operations[_MOST_OPERATIONS:]
    if rest:
        seconds = seconds_text(sum(op.seconds for op in rest))
        rows.append(f'<tr><td class="n">{seconds}</td><td colspan="7">{len(rest)} more</td></tr>')
    return f"<table>{''.join(rows)}</table>"


def _tree(modules: Sequence[ModuleTime]) -> str:
    """The modules as lists that open, each with those inside it."""
    children: dict[str, list[ModuleTime]] = {}
    for module in modules:
        if module.path:
            children.setdefault(module.path.rpartition(".")[0], []).append(module)
    tops = [m for m in modules if "." not in m.path]
    longest = max((m.seconds for m in tops), default=1.0) or 1.0

    def item(module: ModuleTime, depth: int) -> str:
        inner = sorted(children.get(module.path, ()), key=lambda m: -m.seconds)
        name = module.path.rpartition(".")[2] or "in no module"
        row = (
            f'<span class="mark"></span><code>{escape(name)}</code>'
            f"{_share(module.seconds, module.backward, longest)}"
            f"<span>{module.flops_rate / 1e9:,.1f} GFLOP/s</span>"
        )
        if not inner or not module.path:
            return f'<div class="leaf item">{row.replace(_MARK, _EMPTY)}</div>'
        opened = " open" if depth < 1 and len(inner) <= 8 else ""
        below = "".join(item(one, depth + 1) for one in inner)
        return f'<details{opened}><summary class="item">{row}</summary>{below}</details>'

    return "".join(item(m, 0) for m in sorted(tops, key=lambda m: -m.seconds))
