"""Two files of results side by side: what became faster, slower, right or wrong."""

from rich.console import Console
from rich.table import Table

from bench.report import subject
from bench.results import Results, geometric_mean, latency


def compare(before: Results, after: Results, console: Console) -> None:
    """Print for each model of both the latency against eager's of its own run, and their ratio.

    Ratios to eager, as the two runs may have been on machines of other speed or load.
    """
    backend = subject(after)
    table = Table(title=f"{backend}, as a multiple of eager's latency in the same run")
    for head in ("model", str(before.path.name), str(after.path.name), "ratio"):
        table.add_column(head, justify="left" if head == "model" else "right")
    changes = []
    for name in before.models.keys() & after.models.keys():
        old, new = _relative(before, name, subject(before)), _relative(after, name, backend)
        if isinstance(old, float) and isinstance(new, float):
            changes.append((old / new, name, old, new))
        elif old != new:
            table.add_row(name, _shown(old), _shown(new), "")
    for ratio, name, old, new in sorted(changes):
        colour = "red" if ratio < 0.95 else "green" if ratio > 1.05 else "default"
        table.add_row(name, _shown(old), _shown(new), f"[{colour}]{ratio:.2f}[/{colour}]")
    console.print(table)
    mean = geometric_mean(ratio for ratio, *_ in changes)
    console.print(f"{len(changes)} models, geometric mean {mean:.3f} (above 1: became faster)")


def _relative(results: Results, model: str, backend: str) -> float | str:
    record = results.models[model]
    own, eager = latency(record, backend), latency(record, "eager")
    if own is None or eager is None:
        return str(record["backends"].get(backend, {}).get("status", "missing"))
    return own / eager


def _shown(value: float | str) -> str:
    return f"{value:.3f}" if isinstance(value, float) else value
