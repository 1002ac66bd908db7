"""Progress bars, loss curves and times of the examples."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import rich.progress
from matplotlib.figure import Figure

T = TypeVar("T")


def track(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a progress bar that says what is done, how far, and how long it takes."""
    return rich.progress.track(items, description=what)


def plot(
    path: pathlib.Path,
    *,
    losses: Mapping[str, Sequence[float]] | None = None,
    seconds: Mapping[str, float] | None = None,
    what: str = "a step",
) -> None:
    """Draw into an image file.

    Args:
        path: the file; its ending says which kind of image.
        losses: curves over the steps, by name.
        seconds: what each of several ways takes for the same, as bars.
        what: is what takes these seconds.
    """
    count = bool(losses) + bool(seconds)
    figure = Figure(figsize=(3 + 4 * count, 4), layout="constrained")
    panes = iter(figure.subplots(1, count, squeeze=False)[0])
    if losses:
        axes = next(panes)
        for name, curve in losses.items():
            axes.plot(curve, label=name, linewidth=1)
        axes.set(xlabel="step", ylabel="loss", yscale="log")
        axes.legend()
        axes.grid(alpha=0.3)
    if seconds:
        axes = next(panes)
        bars = axes.bar(list(seconds), [1e3 * taken for taken in seconds.values()])
        axes.bar_label(bars, fmt="%.3g ms")
        axes.margins(y=0.1)
        axes.set(ylabel=f"{what}, milliseconds")
    figure.savefig(path, dpi=120)
