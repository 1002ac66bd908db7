"""Pictures of a profile as SVG: bars, the roofline, and the timeline of a run."""

import math
from collections.abc import Sequence
from html import escape

from xla_dynamo.reports.line_times import OperationTime, ProgramText
from xla_dynamo.reports.peaks import Peaks
from xla_dynamo.reports.trace_events import Operation

COLOURS = ("c0", "c1", "c2", "c3", "c4", "c5", "c6", "c7")
_MOST_DOTS, _MOST_BOXES = 400, 4000
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 760, 340, 60, 44


def seconds_text(seconds: float) -> str:
    """A time with a unit, as "12.3 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return (
                f"{seconds / size:.3g} {unit}"
                if seconds < 100 * size
                else (f"{seconds / size:,.0f} {unit}")
            )
    return f"{seconds * 1e9:.0f} ns" if seconds else "0"


def stacked_bar(parts: Sequence[tuple[str, float]]) -> str:
    """A bar of parts, with a legend."""
    whole = sum(value for _, value in parts) or 1.0
    spans, legend = [], []
    for number, (name, value) in enumerate(parts):
        share, colour = 100 * value / whole, COLOURS[number % len(COLOURS)]
        text = f"{escape(name)}: {seconds_text(value)} ({share:.1f}%)"
        if share > 0.05:
            spans.append(f'<i class="{colour}" style="width:{share:.3f}%" title="{text}"></i>')
        legend.append(
            f'<li><b class="{colour}"></b>{escape(name)} '
            f"<span>{seconds_text(value)}, {share:.1f}%</span></li>"
        )
    return f'<div class="bar">{"".join(spans)}</div><ul class="legend">{"".join(legend)}</ul>'


def colours_of(kinds: Sequence[str]) -> dict[str, str]:
    """A colour for each kind of operations; kinds beyond the last have the last one's."""
    return {kind: COLOURS[min(n, len(COLOURS) - 1)] for n, kind in enumerate(kinds)}


def roofline(operations: Sequence[OperationTime], peaks: Peaks, colours: dict[str, str]) -> str:
    """Operations by FLOPs a byte and FLOPs a second, under what the machine can do."""
    known = [op for op in operations if op.flops and op.bytes and op.seconds][:_MOST_DOTS]
    if not known:
        return "<p>No operation computes in floating point.</p>"
    most = max(peaks.flops.values())
    ridge = max(peaks.flops.values()) / peaks.bytes
    left = math.floor(math.log10(min(0.1, *(op.flops / op.bytes for op in known))))
    right = math.ceil(math.log10(max(ridge * 3, *(op.flops / op.bytes for op in known))))
    high = math.ceil(math.log10(max(most, *(op.flops_rate for op in known))))
    low = max(high - 6, math.floor(math.log10(max(min(op.flops_rate for op in known), 1e3))))

    def x(intensity: float) -> float:
        part = (math.log10(intensity) - left) / (right - left)
        return _LEFT + part * (_WIDTH - _LEFT - 16)

    def y(rate: float) -> float:
        part = (math.log10(max(rate, 10.0**low)) - low) / (high - low)
        return 28 + (1 - part) * (_HEIGHT - _BOTTOM - 28)

    right_end, foot = _WIDTH - 16, _HEIGHT - _BOTTOM
    parts = []
    for power in range(left, right + 1):
        at = x(10.0**power)
        parts.append(_rule(at, at, 28, foot))
        parts.append(_text(at, _HEIGHT - 26, f"{10.0**power:g}"))
    for power in range(low, high + 1):
        at = y(10.0**power)
        parts.append(_rule(_LEFT, right_end, at, at))
        parts.append(_text(_LEFT - 8, at + 4, f"{10.0 ** (power - 9):g}", "end"))
    start = 10.0**left
    for name, rate in peaks.flops.items():
        points = ((start, start * peaks.bytes), (rate / peaks.bytes, rate), (10.0**right, rate))
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        parts.append(f'<polyline class="roof" points="{path}"/>')
        label = f"{name} products: {rate / 1e9:,.0f} GFLOP/s"
        parts.append(_text(right_end - 4, y(rate) - 5, label, "end"))
    whole = sum(op.seconds for op in operations) or 1.0
    for op in reversed(known):
        radius = 2.5 + 14 * math.sqrt(op.seconds / whole)
        text = (
            f"{op.kind} {op.name}: {op.flops_rate / 1e9:.1f} GFLOP/s, "
            f"{op.flops / op.bytes:.2f} FLOP/byte, {seconds_text(op.seconds)}, "
            f"{100 * op.share:.0f}% of the bound"
        )
        parts.append(
            f'<circle class="{colours.get(op.kind, "c7")}" cx="{x(op.flops / op.bytes):.1f}" '
            f'cy="{y(op.flops_rate):.1f}" r="{radius:.1f}"><title>{escape(text)}</title></circle>'
        )
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 6, "FLOP per byte of operands and results"))
    parts.append(_text(2, 14, "GFLOP/s", "start"))
    return f'<svg class="plot" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _rule(x1: float, x2: float, y1: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def timeline(program: ProgramText, run: Sequence[Operation], colours: dict[str, str]) -> str:
    """The operations of one run, a row for each thread."""
    begin, end = min(op.start for op in run), max(op.end for op in run)
    whole = max(end - begin, 1.0)
    threads = sorted({op.thread for op in run}, key=lambda t: (t != "python", t))
    rows = {thread: number for number, thread in enumerate(threads)}
    width, row = 1200, 26
    height = row * len(rows) + 24
    parts = []
    for number in range(11):
        at = number * width / 10
        parts.append(_rule(at, at, 0, height - 20))
        anchor = "start" if not number else "end" if number == 10 else "middle"
        parts.append(_text(at, height - 6, seconds_text(whole * number / 10 / 1e9), anchor))
    shown = sorted(run, key=lambda op: op.start - op.end)[:_MOST_BOXES]
    for op in sorted(shown, key=lambda op: (op.start, -op.end)):
        x, wide = (op.start - begin) / whole * width, (op.end - op.start) / whole * width
        kind = program.kinds.get(op.name, "")
        places = program.places.get(op.name, ())
        where = ", ".join(dict.fromkeys(f"{p.file}:{p.line}" for p in places if p.file))
        text = f"{kind} {op.name}, {seconds_text((op.end - op.start) / 1e9)}\n{where}"
        parts.append(
            f'<rect class="{colours.get(kind, "c7")}" x="{x:.2f}" y="{rows[op.thread] * row + 3}" '
            f'width="{max(wide, 0.4):.2f}" height="{row - 6}"><title>{escape(text)}</title></rect>'
        )
    view = f'viewBox="0 0 {width} {height}"'
    return f'<svg class="time" {view} role="img" preserveAspectRatio="none">{"".join(parts)}</svg>'
