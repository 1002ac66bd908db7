"""The Dockerfiles: hadolint finds nothing in them, and what they copy and install is there."""

import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FILES = sorted((ROOT / "docs/docker").glob("Dockerfile.*"))
HADOLINT = shutil.which("hadolint", path=pathlib.Path(sys.executable).parent)


def findings(text: str) -> str:
    return subprocess.run([HADOLINT, "-"], input=text, capture_output=True, text=True).stdout


@pytest.mark.skipif(HADOLINT is None, reason="hadolint has no wheel for this platform")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_hadolint(file):
    text = file.read_text()
    assert findings(text) == ""
    assert "DL3007" in findings(re.sub("python:[^ \n]+", "python:latest", text))
    assert "DL3002" in findings(text.replace("USER 1000", "USER root"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_is_copied_and_installed_is_there(file):
    text = file.read_text()
    copied = [
        name for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.M) for name in line.split()
    ]
    assert {name for name in copied if not (ROOT / name).exists()} == set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["package-dir"].values()
    assert {"pyproject.toml", "README.md", *packages} <= set(copied)  # what the wheel is made of

    (script,) = re.findall(r"python -c '(.*?)'", text, re.S)
    run = subprocess.run(
        [sys.executable, "-c", script.replace("\\\n", "")], cwd=ROOT, capture_output=True, text=True
    )
    requirements = run.stdout.splitlines()
    wanted = project["project"]
    assert set(wanted["dependencies"] + wanted["optional-dependencies"]["serving"]) <= set(
        requirements
    )
    cuda = set(wanted["optional-dependencies"]["cuda"]) & set(requirements)
    assert bool(cuda) == (file.suffix == ".cuda")
