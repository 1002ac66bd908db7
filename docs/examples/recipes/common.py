"""What the recipes share: their options, a step in eager, and times beside eager."""

import argparse
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping

import torch


def options_of(page: str | None, out: str, *, steps: int) -> argparse.ArgumentParser:
    """A parser with the options that every recipe has; a recipe adds its own.

    Args:
        page: what `--help` prints, a recipe's `__doc__`.
        out: the folder that `--out` names by default; it is made when the options are parsed.
        steps: how many `--steps` are made by default.
    """
    parser = argparse.ArgumentParser(
        description=page, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=_folder, default=out, help="what is made is written here")
    parser.add_argument("--steps", type=_positive, default=steps)
    return parser


def multiple_of(factor: int) -> Callable[[str], int]:
    """The type of an option whose number is a positive multiple of another."""

    def parse(text: str) -> int:
        if (number := int(text)) < 1 or number % factor:
            raise argparse.ArgumentTypeError(f"must be a multiple of {factor}, not {number}")
        return number

    return parse


def beside_eager(
    what: str, calls: Mapping[str, Callable[[], object]], *, rounds: int = 7
) -> dict[str, float]:
    """Print and return the median seconds of each call; the ratios are to the one named "eager".

    The calls take turns, so that another load of the machine falls on all of them. The first round,
    in which programs are compiled, does not count.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for count in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if count:
                samples[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(taken) for name, taken in samples.items()}
    for name, taken in seconds.items():
        faster = f", {seconds['eager'] / taken:.2f} times as fast" if name != "eager" else ""
        print(f"{what}, {name}: {1e3 * taken:.1f} ms{faster}")
    return seconds


def eager_step(
    model: torch.nn.Module,
    loss_fn: Callable[..., torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> Callable[..., torch.Tensor]:
    """The step in eager PyTorch that `xla_dynamo.train_step` compiles of the same arguments."""

    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_fn(model, *batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _folder(text: str) -> pathlib.Path:
    path = pathlib.Path(text)
    path.mkdir(parents=True, exist_ok=True)
    return path


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number
