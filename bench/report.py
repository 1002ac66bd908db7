"""Results as a table, a chart and a page that needs nothing else."""

import base64
import html
import io
import math
import pathlib
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.backends import BACKENDS
from bench.results import Record, Results, failures, geometric_mean, latency, speedup, where

OURS = ("openxla-step", "openxla", "openxla-freeze")
RUNTIMES = ("openvino", "onnxruntime")


def subject(results: Results) -> str:
    """The backend that the report is about: the first of ours that was run."""
    ran = results.backends()
    return next((name for name in OURS if name in ran), ran[-1])


def peers(results: Results) -> list[str]:
    """Whose better one the speedups are over: eager and Inductor, first that of defaults."""
    ran = results.backends()
    inductor = "inductor" if "inductor" in ran else "inductor-max"
    return [name for name in ("eager", inductor) if name in ran]


def _rivals(results: Results) -> list[list[str]]:
    """Groups whose better one is compared with: our peers, and runtimes of exported models."""
    others = [name for name in results.backends() if name != subject(results)]
    runtimes = [name for name in RUNTIMES if name in others]
    return [peers(results), runtimes] if runtimes else [peers(results)]


def _better(names: Sequence[str]) -> str:
    return f"the better of {' and '.join(names)}" if len(names) > 1 else "".join(names)


def title(results: Results) -> str:
    """One line: what was measured."""
    settings = results.run.get("settings", {})
    shown = [str(settings[k]) for k in ("mode", "dtype", "size") if k in settings]
    return f"{', '.join(shown)}: {len(results.models)} models, {results.run.get('date', '?')}"


def caption(results: Results) -> str:
    """Where, with which versions, by which command and how alone each round was."""
    places = " and ".join(dict.fromkeys(where(run) for run in results.runs)) or "?"
    pause = results.run.get("settings", {}).get("pause", 0.0)
    alone = "in each round the other backends' processes are stopped"
    alone += f", and it begins after a pause of {pause:g} s" if pause else ""
    return f"{places}; {results.run.get('run', '?')}; {alone}"


def columns(results: Results) -> list[str]:
    """The heads of the table."""
    ran = results.backends()
    ours = subject(results)
    heads = ["model", *(f"{b} ms" for b in ran), f"{ours} speedup"]
    heads += ["over runtimes"] if len(_rivals(results)) > 1 else []
    heads += [f"{b} cold s" for b in ran if b != "eager"]
    heads += [f"{b} tiny us" for b in _timed_tiny(results)]
    return [*heads, "peak MB / eager's", "error", "graphs", "executables", "fallbacks"]


def row(results: Results, record: Record) -> list[str]:
    """A model's line."""
    ran, ours = results.backends(), subject(results)
    found = record["backends"]
    cells = [record["model"], *(_milliseconds(record, b) for b in ran)]
    cells += [_ratio(speedup(record, ours, group)) for group in _rivals(results)]
    cells += [_number(found.get(b, {}).get("cold_s"), ".1f") for b in ran if b != "eager"]
    cells += [_number(found.get(b, {}).get("overhead_us"), ".0f") for b in _timed_tiny(results)]
    own, eager = found.get(ours, {}), found.get("eager", {})
    memory = own["peak_mb"] / eager["peak_mb"] if "peak_mb" in own and "peak_mb" in eager else None
    cells += [_number(memory, ".2f"), _number(own.get("error"), ".0e")]
    return cells + [_number(own.get(k), "d") for k in ("graphs", "executables", "fallbacks")]


def means(results: Results) -> list[tuple[str, float, int]]:
    """Geometric means: what of, the mean, and of how many models."""
    ours, models = subject(results), list(results.models.values())
    ran = [b for b in results.backends() if b != ours]
    groups = _rivals(results)
    shown = [(f"speedup over {_better(g)}", [speedup(m, ours, g) for m in models]) for g in groups]
    alone = [b for b in ran if [b] not in groups]
    shown += [(f"speedup over {b}", [speedup(m, ours, [b]) for m in models]) for b in alone]
    for backend in ran:
        if backend != "eager":
            ratios = [_quotient(m, ours, backend, "cold_s") for m in models]
            shown.append((f"cold compile time / {backend}'s", ratios))
        ratios = [_quotient(m, ours, backend, "peak_mb") for m in models]
        shown.append((f"peak memory / {backend}'s", ratios))
        ratios = [_quotient(m, ours, backend, "overhead_us") for m in models]
        shown.append((f"a call at the tiny size / {backend}'s", ratios))
    return [
        (what, geometric_mean(ratios), len(present))
        for what, ratios in shown
        if (present := [r for r in ratios if r is not None])
    ]


def _mean_rows(results: Results) -> list[tuple[str, str, str]]:
    return [(what, f"{mean:.2f}", str(count)) for what, mean, count in means(results)]


def _timed_tiny(results: Results) -> list[str]:
    """The backends, if what a call costs was measured too (`--overhead`)."""
    entries = [b for record in results.models.values() for b in record["backends"].values()]
    return results.backends() if any("overhead_us" in entry for entry in entries) else []


def _quotient(record: Record, ours: str, other: str, key: str) -> float | None:
    own, its = (record["backends"].get(b, {}) for b in (ours, other))
    ok = own.get("status") == its.get("status") == "ok"
    return own[key] / its[key] if ok and own.get(key) and its.get(key) else None


def _milliseconds(record: Record, backend: str) -> str:
    milliseconds = latency(record, backend)
    if milliseconds is None:
        return str(record["backends"].get(backend, {}).get("status", "-"))
    return f"{milliseconds:.3g}" if milliseconds < 1000 else f"{milliseconds:.0f}"


def _ratio(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}"


def _number(number: float | None, form: str) -> str:
    return "-" if number is None else format(number, form)


def show(results: Results, console: Console) -> None:
    """Print the table, the means and what failed."""
    table = Table(title=title(results), caption=caption(results))
    for head in columns(results):
        table.add_column(head, justify="left" if head == "model" else "right")
    for record in _fastest_first(results):
        table.add_row(*row(results, record))
    console.print(table)
    summary = Table(title=f"geometric means of {subject(results)}")
    for head in ("", "mean", "models"):
        summary.add_column(head, justify="right" if head else "left")
    for cells in _mean_rows(results):
        summary.add_row(*cells)
    console.print(summary)
    for model, backend, status, message in failures(results):
        told = f"[red]{model}, {backend}: {status}[/red] {escape(message)}"
        console.print(told, highlight=False)


def _fastest_first(results: Results) -> Iterable[Record]:
    ours, others = subject(results), peers(results)
    return sorted(
        results.models.values(), key=lambda m: speedup(m, ours, others) or 0.0, reverse=True
    )


def chart(results: Results) -> bytes:
    """The speedups as bars, on a logarithmic scale: a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    ours, others = subject(results), peers(results)
    named = [(m["model"], speedup(m, ours, others)) for m in _fastest_first(results)]
    shown = [(name, s) for name, s in named if s is not None]
    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.22 * len(shown)), layout="constrained")
    colours = ["tab:blue" if s >= 1 else "tab:red" for _, s in shown]
    # Bars from 1, so that twice as fast and half as fast are as long.
    axes.barh([n for n, _ in shown], [s - 1 for _, s in shown], left=1, color=colours)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.axvline(1, color="black", linewidth=0.8)
    mean = geometric_mean(s for _, s in shown)
    if not math.isnan(mean):
        axes.axvline(mean, color="black", linewidth=0.8, linestyle="dotted")
    axes.invert_yaxis()
    axes.set_title(f"{ours} against {_better(others)}; {title(results)}", size=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    pyplot.close(figure)
    return buffer.getvalue()


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 14px sans-serif; margin: 2em; max-width: 100em }}
table {{ border-collapse: collapse; margin: 1em 0 }} img {{ max-width: 100% }}
td, th {{ padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: right }}
td:first-child, th:first-child {{ text-align: left }}</style>
<h1>{title}</h1><p>{caption}</p>{means}<img alt="speedups" src="data:image/png;base64,{chart}">
{table}<h2>Backends</h2>{backends}<h2>What failed</h2>{failures}</html>
"""


def page(results: Results) -> str:
    """The HTML page: the same, self-contained."""
    ours = subject(results)
    about = [(b, BACKENDS[b].about) for b in results.backends() if b in BACKENDS]
    return _PAGE.format(
        title=html.escape(title(results)),
        caption=html.escape(caption(results)),
        means=_html_table(
            [f"geometric means of {ours}", "mean", "models"],
            _mean_rows(results),
        ),
        chart=base64.b64encode(chart(results)).decode(),
        table=_html_table(columns(results), [row(results, m) for m in _fastest_first(results)]),
        backends=_html_table(["backend", ""], about),
        failures=_html_table(["model", "backend", "status", ""], failures(results)),
    )


def _html_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{html.escape(c)}</{tag}>' for c in cells)}</tr>"

    body = "".join(line(cells, "td") for cells in rows)
    return f"<table>{line(heads, 'th')}{body}</table>" if body else "<p>none</p>"


def markdown(results: Results) -> str:
    """The table, the means and what failed, for a repository."""
    heads = [f"geometric means of {subject(results)}", "mean", "models"]
    parts = [
        f"# {title(results)}",
        caption(results),
        _markdown_table(heads, _mean_rows(results)),
        _markdown_table(columns(results), [row(results, m) for m in _fastest_first(results)]),
    ]
    if failed := failures(results):
        parts += ["## What failed", _markdown_table(["model", "backend", "status", ""], failed)]
    return "\n\n".join(parts) + "\n"


def _markdown_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def write(results: Results, folder: pathlib.Path) -> list[pathlib.Path]:
    """Write the chart, the page and the table in Markdown beside the results; their paths."""
    stem = results.path.stem
    image, site, text = (folder / f"{stem}.{end}" for end in ("png", "html", "md"))
    image.write_bytes(chart(results))
    site.write_text(page(results))
    text.write_text(markdown(results))
    return [image, site, text]
