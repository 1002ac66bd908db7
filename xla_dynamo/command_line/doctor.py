"""Look at the installation and the machine, and run a small model.

Prints what a bug report needs. The exit status is 1 where something is wrong, and the line below it
says what to do.
"""

import argparse
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from xla_dynamo.command_line.disk_cache import check_disk_cache
from xla_dynamo.command_line.findings import Finding, show
from xla_dynamo.command_line.machine import check_environment, check_machine
from xla_dynamo.command_line.requirements import check_versions
from xla_dynamo.switches import child_environment
from xla_dynamo.switches.ours import CACHE_DIR

SUMMARY = "versions, devices, disk cache, a self-test; exits with 1 where something is wrong"
_TOLERANCE = 1e-4
_HINT = "Set TORCHDYNAMO_VERBOSE"  # Dynamo's, below each error
_SELF_TEST = [sys.executable, "-m", "xla_dynamo.command_line.self_test"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument(
        "--timeout", type=float, default=300, metavar="SECONDS", help="of the self-test"
    )


def run(arguments: argparse.Namespace) -> int:
    """Check everything; returns the exit status."""
    sections = [(heading, list(check(arguments))) for heading, check in SECTIONS.items()]
    show([(heading, findings) for heading, findings in sections if findings])
    wrong = sum(not finding.is_well for _, findings in sections for finding in findings)
    print(f"{wrong} of these need attention" if wrong else "all is well")
    return 1 if wrong else 0


def check_registration() -> Iterator[Finding]:
    """Whether torch finds the backend by its name."""
    found = importlib.metadata.entry_points(group="torch_dynamo_backends", name="openxla")
    values = sorted({entry.value for entry in found})
    advice = ""
    if "xla_dynamo.backend:openxla" not in values:
        advice = (
            "torch.compile(backend='openxla') does not find this package: install it (pip install "
            "xla-dynamo, or pip install -e . in a checkout)"
        )
    elif len(values) > 1:
        advice = "several packages claim the name: uninstall the others"
    yield Finding("backend 'openxla'", ", ".join(values) or "nobody's", advice)


def check_self_test(arguments: argparse.Namespace) -> Iterator[Finding]:
    """The devices, and a small model compiled in another process."""
    try:
        done = subprocess.run(
            _SELF_TEST,
            env=child_environment(**{CACHE_DIR.name: ""}),  # cold, and what it compiles is nobody's
            capture_output=True,
            text=True,
            timeout=arguments.timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        advice = "it was ended: run it by itself to see where it waits, " + _by_itself()
        yield Finding("self-test", f"no result in {arguments.timeout:g} s", advice)
        return
    if done.returncode:
        yield Finding("self-test", _last_line(done), _advice(done))
        return
    yield from _findings(json.loads(done.stdout.splitlines()[-1]))


def _findings(found: dict[str, Any]) -> Iterator[Finding]:
    devices = found["devices"]
    advice = ""
    if found["torch_cuda"] and found["default"] == "CPU":
        advice = (
            "torch has a GPU, and programs run on the CPU: install JAX's plugin (pip install "
            "'xla-dynamo[cuda]'), and unset PJRT_DEVICE"
        )
    shown = ", ".join(devices[:8]) + (", …" if len(devices) > 8 else "")
    yield Finding("devices", f"{found['default']}: {shown}", advice)
    yield Finding("libraries", ", ".join(found["libraries"]) or "none")
    if found["native_code"]:
        advice = "products and convolutions are slower than they could be: reinstall llvmlite"
        yield Finding("native code", found["native_code"], advice)
    value = f"{found['seconds']:.1f} s, cold, forward and backward; error {found['error']:.0e}"
    is_right = found["error"] <= _TOLERANCE  # a NaN is not
    advice = "" if is_right else "results differ from eager torch's: please report this"
    yield Finding("self-test", value, advice)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.strip() and _HINT not in line]
    ended = f"ended by signal {-done.returncode}" if done.returncode < 0 else "failed"
    return f"{ended}: {lines[-1].strip()}" if lines else ended


def _advice(done: subprocess.CompletedProcess[str]) -> str:
    error = done.stderr
    if "jaxlib" in _last_line(done) and "version" in _last_line(done):
        return "install jax and jaxlib of one release: pip install -U 'jax>=0.10,<0.13' jaxlib"
    if "ModuleNotFoundError" in error or "ImportError" in error:
        return "see the versions above; a package cannot be imported: " + _by_itself()
    if done.returncode in (-4, -11):
        return "a native library crashed: reinstall jaxlib for this machine; " + _by_itself()
    return "see the whole message: " + _by_itself()


def _by_itself() -> str:
    return "python -m xla_dynamo.command_line.self_test"


# The headings and what is looked at under each, in this order.
SECTIONS: dict[str, Callable[[argparse.Namespace], Iterator[Finding]]] = {
    "versions": lambda _: check_versions(),
    "registration": lambda _: check_registration(),
    "machine": lambda _: check_machine(),
    "environment": lambda _: check_environment(),
    "disk cache": lambda _: check_disk_cache(),
    "self-test": check_self_test,
}
