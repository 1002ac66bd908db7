"""`doctor`: on a sound installation, and on ones that are not."""

import os
import subprocess
import sys
import tomllib

import pytest

from tests.test_structure import ROOT
from xla_dynamo.command_line import doctor, main, requirements
from xla_dynamo.command_line.findings import Finding
from xla_dynamo.command_line.machine import check_environment, check_machine


def advice_of(findings):
    return {f.name: f.advice for f in findings if not f.is_well}


def test_a_sound_installation():
    """Everything in processes of their own, the self-test cold."""
    done = subprocess.run(
        [sys.executable, "-m", "xla_dynamo", "doctor"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("torch", "jaxlib", "processor", "features", "devices", "CPU", "self-test"):
        assert said in done.stdout
    assert "all is well" in done.stdout


def test_a_jaxlib_of_another_release(tmp_path):
    """An older one stands before the real one; JAX refuses it, and so the self-test fails."""
    package, metadata = tmp_path / "jaxlib", tmp_path / "jaxlib-0.4.1.dist-info"
    package.mkdir()
    metadata.mkdir()
    (package / "__init__.py").write_text("")
    (package / "version.py").write_text("__version__ = '0.4.1'\n")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxlib\nVersion: 0.4.1\n")
    done = subprocess.run(
        [sys.executable, "-m", "xla_dynamo", "doctor"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "jaxlib" in done.stdout
    assert ">=0.10,<0.13 is needed: pip install 'jaxlib>=0.10,<0.13'" in done.stdout
    assert "install jax and jaxlib of one release" in done.stdout
    assert "need attention" in done.stdout


def test_the_requirements_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(requirements.REQUIREMENTS) == project["dependencies"]
    assert project["requires-python"] == requirements.PYTHON


@pytest.mark.parametrize(
    ("version", "bounds", "answer"),
    [
        ("2.13.0+cpu", ">=2.11,<2.16", True),
        ("2.16.0", ">=2.11,<2.16", False),
        ("2.9.1", ">=2.11,<2.16", False),
        ("0.12.0.1", ">=0.10,<0.13", True),
        ("0.13", ">=0.10,<0.13", False),
        ("13.0", ">=13", True),
    ],
)
def test_releases(version, bounds, answer):
    assert requirements.satisfies(version, bounds) is answer


def test_a_missing_package(monkeypatch):
    def version(name):
        if name == "sympy":
            raise requirements.importlib.metadata.PackageNotFoundError(name)
        return {"torch": "2.13.0", "jax": "0.11.0", "rich": "13.0"}.get(name, "0.12.1")

    monkeypatch.setattr(requirements.importlib.metadata, "version", version)
    found = advice_of(requirements.check_versions())
    assert found["sympy"] == "pip install 'sympy>=1.13'"
    assert "one release: pip install 'jaxlib==0.11.0'" in found["jax and jaxlib"]
    assert "numpy" in found  # 0.12.1
    assert "torch" not in found


@pytest.mark.parametrize(
    ("system", "machine", "wanted"),
    [
        ("linux", "x86_64", True),
        ("linux", "aarch64", True),
        ("linux", "ppc64le", False),
        ("darwin", "arm64", False),
        ("win32", "AMD64", False),
    ],
)
def test_llvmlite_is_for_some_machines(monkeypatch, system, machine, wanted):
    def version(name):
        raise requirements.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(requirements.importlib.metadata, "version", version)
    monkeypatch.setattr(requirements.sys, "platform", system)
    monkeypatch.setattr(requirements.platform, "machine", lambda: machine)
    found = {finding.name: finding.advice for finding in requirements.check_versions()}
    assert ("llvmlite" in found) is wanted
    if wanted:
        assert found["llvmlite"] == (
            "pip install 'llvmlite>=0.45,<1'; without it products and convolutions are slower"
        )


def test_llvmlite_does_not_work():
    found = {"devices": [], "default": "CPU", "libraries": [], "torch_cuda": False}
    found |= {"native_code": "llvmlite does not work here: ...", "seconds": 1, "error": 0}
    assert "reinstall llvmlite" in advice_of(doctor._findings(found))["native code"]


def test_the_name_is_not_registered(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", lambda **_: [])
    (advice,) = advice_of(doctor.check_registration()).values()
    assert "does not find this package" in advice


def test_a_processor_without_avx(tmp_path, monkeypatch):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: Old\nflags\t\t: fpu sse2\n")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert "need AVX" in advice_of(check_machine(str(cpuinfo)))["features"]
    cpuinfo.write_text("model name\t: New\nflags\t\t: avx avx2 avx512f amx_tile\n")
    found = {f.name: f for f in check_machine(str(cpuinfo))}
    assert found["features"] == Finding("features", "avx avx2 avx512f amx_tile")
    assert found["processor"].value.startswith("New, ")


def test_variables_and_their_values(monkeypatch):
    for name, text in {
        "XLA_DYNAMO_PROGRESS": "no",
        "XLA_DYNAMO_CACHE_MEGABYTES": "many",
        "XLA_DYNAMO_CACHE_DIRS": "/a",
        "XLA_DYNAMO_DUMP": "/a\n\udcff",
        "TORCHDYNAMO_VERBOSE": "1",
        "TERM": "xterm",
        "XLA_USE_BF16": "1",
        "DEBUG": "*",
    }.items():
        monkeypatch.setenv(name, text)
    shown = {f.name: (f.value, f.advice) for f in check_environment()}
    assert shown["XLA_DYNAMO_PROGRESS"] == ("'no': off", "")
    value, advice = shown["XLA_DYNAMO_CACHE_MEGABYTES"]
    assert value == "'many'"
    assert "must be a positive integer" in advice
    value, advice = shown["XLA_DYNAMO_CACHE_DIRS"]
    assert (value, advice.rpartition(": ")[2]) == ("unknown", "did you mean XLA_DYNAMO_CACHE_DIR?")
    assert shown["XLA_DYNAMO_DUMP"] == (r"'/a\n\udcff'", "")
    assert shown["TORCHDYNAMO_VERBOSE"] == ("1", "")
    assert shown["CPU_NUM_DEVICES"] == ("8", "")
    value, advice = shown["XLA_USE_BF16"]
    assert "does nothing here" in value
    assert "autocast" in value
    assert not advice
    assert not {"TERM", "DEBUG"} & set(shown)  # of other programs, too


def test_a_variable_that_disables_the_backend(monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_DISABLE", "1")
    assert "unset it" in advice_of(check_environment())["XLA_DYNAMO_DISABLE"]


@pytest.mark.parametrize(
    ("code", "value", "advice"),
    [
        ("import time; time.sleep(60)", "no result in 0.5 s", "it was ended"),
        ("import os; os.kill(os.getpid(), 11)", "ended by signal 11", "native library crashed"),
        ("import nonsense", "failed: ModuleNotFoundError", "cannot be imported"),
        ("raise ValueError('3')", "failed: ValueError: 3", "the whole message"),
        (
            'print(\'{"default": "CPU", "devices": ["cpu:0"], "libraries": [], '
            '"native_code": "", "torch_cuda": false, "seconds": 1.0, "error": NaN}\')',
            "error nan",
            "differ from eager",
        ),
    ],
)
def test_a_self_test_that_fails(monkeypatch, code, value, advice):
    monkeypatch.setattr(doctor, "_SELF_TEST", [sys.executable, "-c", code])
    timeout = 0.5 if "sleep" in code else 60
    *_, last = doctor.check_self_test(doctor.argparse.Namespace(timeout=timeout))
    assert value in last.value
    assert advice in last.advice


def test_without_rich(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich.console", None)
    doctor.show([("versions", [Finding("rich", "not installed", "pip install rich")])])
    expected = ["versions", "!!  rich  not installed", "          pip install rich"]
    assert capsys.readouterr().out.splitlines() == expected


def test_the_exit_status_and_the_count(monkeypatch, capsys):
    bad = {"one": lambda _: iter([Finding("a", "b"), Finding("c", "d", "mend it")])}
    monkeypatch.setattr(doctor, "SECTIONS", bad)
    assert main(["doctor"]) == 1
    assert "1 of these need attention" in capsys.readouterr().out
