"""What a run of the benchmark leaves: JSON lines, first the run, then a line a model."""

import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

Record = dict[str, Any]
PACKAGES = ("torch", "jax", "jaxlib", "transformers", "diffusers", "openvino", "onnxruntime")


def describe_run(command: str, settings: Mapping[str, Any]) -> Record:
    """The first line: what was asked, when, on which machine, with which versions."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "run": command,
        "settings": dict(settings),
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": versions,
    }


def where(run: Record) -> str:
    """On which machine, with which versions."""
    versions = ", ".join(f"{k} {v}" for k, v in run.get("versions", {}).items())
    return f"{run.get('machine', '?')}; {versions}"


def machine() -> str:
    """The processor's name, its widest vectors, and the cores that this process has."""
    import psutil
    import torch

    name = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        name = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), name)
    cores = len(psutil.Process().cpu_affinity() or [])
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{name}, {vectors}, {cores} cores, {psutil.virtual_memory().total / 2**30:.0f} GiB"


class Results:
    """A file of results that a crash leaves whole: each line is written when it is known."""

    def __init__(self, path: pathlib.Path) -> None:
        """Read what is there.

        Raises:
            ValueError: a line is no result (the last one may be cut short; it is dropped).
        """
        self.path = path
        self.runs: list[Record] = []  # one, and others where another machine went on
        self.models: dict[str, Record] = {}
        self._cut: int | None = None  # the length of what is whole
        try:
            lines = path.read_text("utf-8").splitlines(keepends=True) if path.exists() else []
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no file of results: {error}") from None
        for number, line in enumerate(lines, 1):
            if not line.endswith("\n"):  # the run was killed while it wrote
                self._cut = len("".join(lines[:-1]).encode())
                break
            try:
                record = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{path}:{number} is no line of results: {error}") from None
            if not _is_record(record):
                raise ValueError(f"{path}:{number} is no line of results: {line.strip():.200}")
            self._take(record)

    @property
    def run(self) -> Record:
        """What was asked; empty of an empty file."""
        return self.runs[0] if self.runs else {}

    def _take(self, record: Record) -> None:
        if "run" in record:
            self.runs.append(record)
        else:
            self.models[record["model"]] = record

    def append(self, record: Record) -> None:
        """Add a line, and have it on disk."""
        self._take(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._cut is not None:
            os.truncate(self.path, self._cut)
            self._cut = None
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def backends(self) -> list[str]:
        """The backends that any model was run with, in the order asked for."""
        return list(dict.fromkeys(b for r in self.models.values() for b in r["backends"]))


def _is_record(read: object) -> bool:
    """Whether what a line says is of a run or of a model, with what either must have."""
    if not isinstance(read, dict):
        return False
    if "run" in read:
        return isinstance(read.get("settings"), dict)
    entries = read.get("backends")
    return isinstance(read.get("model"), str) and (
        isinstance(entries, dict) and all(map(_is_entry, entries.values()))
    )


def _is_entry(read: object) -> bool:
    """Whether what a line says is of a backend; its times are milliseconds."""
    times = read.get("ms", []) if isinstance(read, dict) else None
    return isinstance(times, list) and all(
        isinstance(ms, float | int) and 0 < ms < math.inf for ms in times
    )


def latency(record: Record, backend: str) -> float | None:
    """Milliseconds a call, the median of the rounds; None where the backend failed."""
    found = record["backends"].get(backend, {})
    timed = found.get("status") == "ok" and found.get("ms")
    return statistics.median(timed) if timed else None


def note_overhead(record: Record, tiny: Record) -> None:
    """Take over into a model's record the microseconds that a call takes at its tiny size."""
    for backend, entry in record["backends"].items():
        milliseconds = latency(tiny, backend)
        if milliseconds is not None:
            entry["overhead_us"] = milliseconds * 1e3


def failures(results: Results) -> list[tuple[str, str, str, str]]:
    """Model, backend, status and message of whatever did not work, on its first inputs too."""
    found = []
    for record in results.models.values():
        for measured in (record, record.get("before", {"backends": {}})):
            name = record["model"] if measured is record else f"{record['model']}, other inputs"
            found += [
                (name, backend, entry.get("status", "?"), entry.get("message", ""))
                for backend, entry in measured["backends"].items()
                if entry.get("status") != "ok"
            ]
    return found


def speedup(record: Record, backend: str, over: Iterable[str]) -> float | None:
    """How many times as fast as the fastest of some others; None where either is missing."""
    own = latency(record, backend)
    others = [t for name in over if (t := latency(record, name)) is not None]
    return min(others) / own if own and others else None


def geometric_mean(numbers: Iterable[float | None]) -> float:
    """Of those that are there; NaN of none."""
    logs = [math.log(n) for n in numbers if n is not None and n > 0]
    return math.exp(statistics.fmean(logs)) if logs else math.nan
