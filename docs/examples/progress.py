"""Progress bars and loss curves of the examples."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import rich.progress
from matplotlib.figure import Figure

T = TypeVar("T")


def track(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a progress bar that says what is done, how far, and how long it takes."""
    return rich.progress.track(items, description=what)


def plot_losses(curves: Mapping[str, Sequence[float]], path: pathlib.Path) -> None:
    """Draw named losses over the steps into an image file."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, losses in curves.items():
        axes.plot(losses, label=name, linewidth=1)
    axes.set(xlabel="step", ylabel="loss", yscale="log")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
