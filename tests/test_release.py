"""The wheel and the source distribution have all of the package, and work without the checkout."""

import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from tests.documentation.blocks import blocks

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """A folder with the source distribution, and the wheel that was built from it."""
    out = tmp_path_factory.mktemp("dist")
    # The package index is not asked: setuptools is the one that runs the tests.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(dist):
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of an environment that has the wheel, and beside it what the package needs."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    venv.create(place, with_pip=True, symlinks=True)
    python = place / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel]
    subprocess.run(install, check=True, timeout=300)
    # Torch and jax come from the environment of the tests; a path in a .pth file brings its
    # packages and leaves out its own .pth files, so the editable install of the checkout.
    (site,) = place.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python, script, folder):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [python, "-W", "ignore", "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def sources():
    """The package's files as they are imported."""
    rooms = {"xla_dynamo": "xla_dynamo", "lowerings": "xla_dynamo/lowerings"}
    rooms["runtime"] = "xla_dynamo/runtime"
    return {
        f"{inside}/{path.relative_to(ROOT / folder)}"
        for folder, inside in rooms.items()
        for path in (ROOT / folder).rglob("*.py")
        if not any(p.is_symlink() for p in path.parents)
    }


def test_the_wheel_has_every_file(wheel):
    names = {n for n in zipfile.ZipFile(wheel).namelist() if n.endswith(".py")}
    assert names == sources()
    assert "xla_dynamo/py.typed" in zipfile.ZipFile(wheel).namelist()
    assert wheel.name == f"xla_dynamo-{PROJECT['version']}-py3-none-any.whl"


def test_the_source_distribution_has_every_file(dist):
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {n.partition("/")[2] for n in archive.getnames() if n.endswith(".py")}
    built = {n.replace("xla_dynamo/lowerings", "lowerings") for n in sources()}
    built = {n.replace("xla_dynamo/runtime", "runtime") for n in built}
    assert built <= names


def test_the_wheel_compiles(python, tmp_path):
    where = run(python, "import xla_dynamo; print(xla_dynamo.__file__)", tmp_path).strip()
    assert pathlib.Path(where).is_relative_to(python.parent.parent)
    # README's own example.
    example = next(b.code for b in blocks("README.md") if b.language == "python" and b.is_shown)
    assert "openxla" in run(python, example, tmp_path)


def test_the_wheel_trains_and_explains(python, tmp_path):
    out = run(
        python,
        """
import torch, xla_dynamo
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = lambda m, x, y: (m(x) - y).square().mean()
step = xla_dynamo.train_step(model, loss_fn, optimizer)
x = torch.randn(64, 4)
y = x.sum(1, keepdim=True)
losses = [float(step(x, y)) for _ in range(100)]
assert losses[-1] < losses[0] / 100, losses
print(xla_dynamo.explain(model)(x))
""",
        tmp_path,
    )
    assert "1 executable, 0 operators in eager torch" in out


def required(name, extras, seen):
    """The names of all distributions that one needs in this environment, its own included."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return  # for another platform
    seen.add(name)
    for line in found.requires or ():
        requirement = Requirement(line)
        wanted = [
            extra
            for extra in extras or {""}
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        ]
        below = canonical(requirement.name)
        if wanted and (below not in seen or requirement.extras):
            required(below, requirement.extras, seen)


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    """What constraints.txt pins: releases by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonical(n): v for n, eq, v in (x.partition("==") for x in lines) if eq}


@pytest.mark.skipif(
    pins()["torch"] != metadata.version("torch").partition("+")[0],
    reason="this environment was not made by the constraints (make test-latest, test-oldest)",
)
def test_everything_that_is_installed_is_pinned():
    pinned = set(pins())
    needed: set[str] = set()
    required("xla-dynamo", {"dev"}, needed)
    # torch itself pins what a build for CUDA brings along.
    cuda = {n for n in needed if n.startswith(("nvidia-", "cuda-")) or n == "triton"}
    assert {"torch", "transformers", "ruff", "mypy"} <= needed
    assert not needed - pinned - cuda - {"xla-dynamo", "pip"}, "run `make constraints`"


def test_the_changelog_has_the_version():
    assert f"## {PROJECT['version']} - " in (ROOT / "CHANGELOG.md").read_text()
