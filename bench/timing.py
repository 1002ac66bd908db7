"""Times that can be compared: interleaved rounds in one process, medians, ratios."""

import argparse
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

import torch


def set_threads(count: int) -> None:
    """Give torch this many threads. XLA's pool has one a core, whatever is set here.

    Both pools are there in every run, so that what is compared is compared under the same load.
    """
    torch.set_num_threads(count)


def calls_per_round(call: Callable[[], object], seconds: float) -> int:
    """How many calls fill a round of about this length."""
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    return max(1, min(2000, round(seconds / once)))


def interleave(
    calls: Mapping[str, Callable[[], object]], *, rounds: int = 15, seconds: float = 0.1
) -> dict[str, float]:
    """Median seconds a call, over rounds in which every candidate takes its turn.

    The first round warms up and does not count.
    """
    counts = {name: calls_per_round(call, seconds) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            if round_:
                samples[name].append((time.perf_counter() - start) / counts[name])
    return {name: statistics.median(times) for name, times in samples.items()}


def in_fresh_process(module: str, *arguments: str) -> list[float]:
    """The numbers in the last line that `python -m module arguments` prints (see last_line)."""
    return [float(word) for word in last_line(module, *arguments).split()]


def last_line(module: str, *arguments: str) -> str:
    """The last line that `python -m module arguments` prints, with empty caches of Inductor."""
    with tempfile.TemporaryDirectory() as cache:
        result = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return result.stdout.splitlines()[-1]


def peak_memory() -> float:
    """The most memory (RSS) that this process has had, in GB."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # getrusage would tell the parent's peak, if that was higher
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def add_settings(parser: argparse.ArgumentParser, sizes: Sequence[str] = ("full", "tiny")) -> None:
    """The options of every benchmark of whole models: `--size`, at first the first, `--threads`."""
    parser.add_argument("--size", choices=sizes, default=sizes[0])
    parser.add_argument("--threads", type=positive, default=os.cpu_count() or 1)


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The options of every benchmark in processes of its own: when one of them is ended."""
    parser.add_argument("--time-limit", type=above_zero, default=900, help="seconds for each step")
    parser.add_argument("--memory-limit", type=above_zero, default=12, help="GB for each worker")


def positive(text: str) -> int:
    """An option's value: a count of at least one."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def zero_or_more(text: str) -> float:
    """An option's value: seconds, of which there may be none."""
    if not (number := float(text)) >= 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, not {number:g}")
    return number


def above_zero(text: str) -> float:
    """An option's value: seconds, or gigabytes, of which there must be some."""
    if not (number := float(text)) > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, not {number:g}")
    return number
