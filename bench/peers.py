"""What backends need: packages, and environments of their own for those of other torch versions.

`python -m bench peers` makes them all under `.peers/`: virtual environments of some gigabytes, as
torch's older releases bring CUDA's libraries also where only the CPU is used.
"""

import importlib.util
import pathlib
import subprocess
import sys
import venv
from collections.abc import Iterable

from bench.processes import ROOT

FOLDER = ROOT / ".peers"
# What each needs beside the models' own libraries. torchax's last release breaks with torch 2.13.
ENVIRONMENTS = {"pytorch_xla": ["torch==2.9.*", "torch_xla==2.9.*", "torchax", "jax", "flax"]}
MODELS = ["transformers>=5", "diffusers>=0.38", "numpy", "psutil"]


def python_of(environment: str) -> str:
    """The interpreter of an environment; "" is this one.

    Raises:
        FileNotFoundError: it was not made yet.
    """
    if not environment:
        return sys.executable
    if not available(environment):
        raise FileNotFoundError(
            f"{environment} has no environment: make it with `python -m bench peers {environment}`"
        )
    return str(_python(environment))


def _python(environment: str) -> pathlib.Path:
    return FOLDER / environment / "bin" / "python"


def make(environment: str) -> pathlib.Path:
    """Make an environment, or bring it up to date; its folder.

    Raises:
        subprocess.CalledProcessError: pip failed, and said why.
    """
    folder = FOLDER / environment
    if not available(environment):
        venv.create(folder, with_pip=True)
    command = [python_of(environment), "-m", "pip", "install", *ENVIRONMENTS[environment], *MODELS]
    subprocess.run(command, check=True)
    return folder


def missing(packages: Iterable[str]) -> list[str]:
    """The packages that are not installed here."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def available(environment: str) -> bool:
    """Whether a backend's environment is there."""
    return not environment or _python(environment).exists()
