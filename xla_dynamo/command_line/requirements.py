"""Which releases of other packages are installed, and whether they are ones that we work with."""

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator

from xla_dynamo.command_line.findings import Finding

# As in pyproject.toml, which an installed package does not have.
REQUIREMENTS = (
    "torch>=2.11,<2.16",
    "jax>=0.10,<0.13",
    "jaxlib>=0.10,<0.13",
    "numpy>=2",
    "rich>=13",
    "sympy>=1.13",
    "llvmlite>=0.45,<1; sys_platform == 'linux' and platform_machine in 'x86_64 aarch64'",
    "onednn-cpu-gomp>=2023.2; sys_platform == 'linux' and platform_machine == 'x86_64'",
)
# What is lost without a package that the others do not need.
_SLOWER = "without it products and convolutions are slower"
_WITHOUT = {"llvmlite": _SLOWER, "onednn-cpu-gomp": _SLOWER}
PYTHON = ">=3.11"


def check_versions() -> Iterator[Finding]:
    """Each package's installed release."""
    yield _finding("Python", platform.python_version(), PYTHON, "a newer Python")
    yield Finding("xla-dynamo", _installed("xla-dynamo") or "not installed: run from a checkout")
    for requirement in REQUIREMENTS:
        bounded, _, marker = requirement.partition("; ")
        if not is_for_this_machine(marker):
            continue
        name, wanted = split(bounded)
        advice = "; ".join(filter(None, [f"pip install '{bounded}'", _WITHOUT.get(name)]))
        yield _finding(name, _installed(name), wanted, advice)
    jax, jaxlib = _installed("jax"), _installed("jaxlib")
    if jax and jaxlib and release(jax)[:2] != release(jaxlib)[:2]:
        advice = f"jax and jaxlib must be of one release: pip install 'jaxlib=={jax}'"
        yield Finding("jax and jaxlib", f"{jax} and {jaxlib}", advice)


def _finding(name: str, version: str | None, wanted: str, advice: str) -> Finding:
    if version is None:
        return Finding(name, "not installed", advice)
    if not satisfies(version, wanted):
        return Finding(name, version, f"{wanted} is needed: {advice}")
    return Finding(name, version)


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_for_this_machine(marker: str) -> bool:
    """Whether a requirement's marker, of system and processor alone, holds here; "" does."""
    names = {"sys_platform": sys.platform, "platform_machine": platform.machine()}
    return not marker or bool(eval(marker, {"__builtins__": {}}, names))


def split(requirement: str) -> tuple[str, str]:
    """The name and the bounds of a requirement such as "torch>=2.11,<2.16"."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return name[0], requirement[name.end() :]


def release(version: str) -> tuple[int, ...]:
    """The numbers of a release: (2, 13, 0) of "2.13.0+cpu"; those of "0.11rc1" are (0, 11)."""
    numbers = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()


def satisfies(version: str, bounds: str) -> bool:
    """Whether a release is within bounds such as ">=2.11,<2.16"."""
    given = release(version)
    for bound in bounds.split(","):
        limit = release(bound.lstrip("<>="))
        if bound.startswith(">=") and given < limit:
            return False
        if bound.startswith("<") and given >= limit:
            return False
    return True
