"""Try the package on this machine's GPU, in minutes: `make gpu-check`.

Each item is a process of its own with a limit, so that one that crashes or hangs loses nothing
else. The report is written after each: OUT/report.json, and OUT/report.md to read. Nothing is
installed or downloaded: torch, jax with its plugin, and this checkout are enough. With
PJRT_DEVICE=CPU everything runs on the CPU, with smaller models.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from bench.gpu_check.items import ITEMS

ROOT = pathlib.Path(__file__).parent.parent.parent
# Seconds for each item, imports and the first use of the GPU included.
LIMITS = {"models": 240, "families": 150}
LIMIT = 90


@dataclasses.dataclass
class Outcome:
    """What became of an item: its checks, each a dictionary of the report, and how it ended."""

    item: str
    status: str = "not run"
    seconds: float = 0.0
    checks: list[dict] = dataclasses.field(default_factory=list)
    end: str = ""  # of what the process wrote, if it did not end well


def examine(item: str, device: str, folder: pathlib.Path, limit: float) -> Outcome:
    """Run an item in a process of its own, which writes a line for each check as it is done."""
    lines, log = folder / f"{item}.jsonl", folder / f"{item}.log"
    lines.unlink(missing_ok=True)
    command = [sys.executable, "-m", "bench.gpu_check.items", item, device, str(lines)]
    # NVIDIA's libraries read it as they are loaded, torch's and XLA's alike.
    environment = {**os.environ, "NVIDIA_TF32_OVERRIDE": "0"}
    start = time.monotonic()
    with open(log, "w") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            status = process.wait(limit)
            ended = "ok" if not status else f"ended by {_reason(status)}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = f"took more than {limit:.0f} s"
    written = lines.read_text().splitlines(keepends=True) if lines.exists() else []
    checks = [json.loads(line) for line in written if line.endswith("\n")]
    if ended == "ok" and any(check["status"] != "ok" for check in checks):
        ended = "failed"
    text = "" if ended == "ok" else "\n".join(log.read_text(errors="replace").splitlines()[-30:])
    return Outcome(item, ended, time.monotonic() - start, checks, text)


def _reason(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def page(outcomes: list[Outcome], device: str) -> str:
    """The report to read: a table of items, a table of checks, and what failed."""
    rows = [f"# Check on {device}", "", time.strftime("%Y-%m-%d %H:%M"), ""]
    rows += ["| item | outcome | seconds | checks |", "|---|---|---:|---:|"]
    for one in outcomes:
        right = sum(check["status"] == "ok" for check in one.checks)
        rows.append(
            f"| {one.item} | {one.status} | {one.seconds:.0f} | {right}/{len(one.checks)} |"
        )
    rows += ["", "| check | outcome | seconds | |", "|---|---|---:|---|"]
    for one in outcomes:
        for check in one.checks:
            told = ", ".join(f"{name} {value}" for name, value in check["figures"].items())
            name = f"{one.item}: {check['check']}"
            rows.append(f"| {name} | {check['status']} | {check['seconds']:.1f} | {told} |")
    for one in outcomes:
        failed = [check for check in one.checks if check["status"] != "ok"]
        for check in failed:
            rows += ["", f"## {one.item}: {check['check']}", "", "```", check["error"], "```"]
        if one.end and not failed:
            rows += ["", f"## {one.item}", "", "```", one.end, "```"]
    return "\n".join(rows) + "\n"


def main() -> int:
    """Run the items as far as the time goes, and print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu_check",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    place = os.environ.get("OUT", "gpu-check")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(place))
    parser.add_argument("--items", default=",".join(ITEMS), help="which, with commas between")
    parser.add_argument("--budget", type=float, default=420, help="seconds for all of them")
    given = parser.parse_args()
    names = given.items.split(",")
    if unknown := set(names) - ITEMS.keys():
        parser.error(f"unknown items: {', '.join(sorted(unknown))}; there are {', '.join(ITEMS)}")
    device = "cpu" if os.environ.get("PJRT_DEVICE", "").upper() == "CPU" else "cuda"
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + given.budget
    outcomes = [Outcome(name) for name in names]
    for index, name in enumerate(names):
        left = end - time.monotonic()
        if left > 10:
            outcomes[index] = examine(name, device, out, min(LIMITS.get(name, LIMIT), left))
            print(f"{name}: {outcomes[index].status}, {outcomes[index].seconds:.0f} s", flush=True)
        report = {"device": device, "items": [dataclasses.asdict(one) for one in outcomes]}
        (out / "report.json").write_text(json.dumps(report, indent=1))
        (out / "report.md").write_text(page(outcomes, device))
    print(page(outcomes, device))
    return int(any(one.status != "ok" for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
