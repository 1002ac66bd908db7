"""What `doctor` finds about the disk cache. Each test has a folder of its own."""

import hashlib
import os

import pytest

from xla_dynamo.command_line.disk_cache import check_disk_cache
from xla_dynamo.command_line.doctor import SECTIONS
from xla_dynamo.runtime import cache_settings
from xla_dynamo.runtime.cache_folder import CacheFolder

KEY = hashlib.sha256(b"a").hexdigest()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with an entry, named by the environment, as a new process reads it."""
    for name in ("READ_ONLY", "MEGABYTES"):
        monkeypatch.delenv(f"XLA_DYNAMO_CACHE_{name}", raising=False)
    folder = CacheFolder(tmp_path / "cache")
    folder.write("executable", KEY, b"payload")
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", str(folder.path))
    return folder


def found():
    return {finding.name: finding for finding in check_disk_cache()}


def test_a_sound_folder(folder):
    findings = found()
    assert findings["folder"].value == f"{folder.path}, writable"
    assert findings["entries"].value.startswith("1 entry, 1 executable; ")
    assert findings["entries"].value.endswith(" B of 4.0 GiB")
    assert all(finding.is_well for finding in findings.values())
    assert os.listdir(folder.path) == [f"executable-{KEY}"]
    assert [finding.name for finding in SECTIONS["disk cache"](None)] == list(findings)


def test_a_folder_that_is_not_made_yet(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", str(tmp_path / "later" / "cache"))
    finding = found()["folder"]
    assert finding.is_well
    assert "made when the first entry is written" in finding.value
    assert not (tmp_path / "later").exists()


def test_one_that_cannot_be_written_to(tmp_path, folder, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert "name another folder by XLA_DYNAMO_CACHE_DIR" in found()["folder"].advice

    def full(path, data):
        raise OSError(28, "No space left on device")

    cache_settings._cache.is_chosen = False
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", str(folder.path))
    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert "nothing new is kept (No space left on device)" in found()["folder"].advice


def test_one_to_read(folder, monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_READ_ONLY", "1")
    monkeypatch.setattr("xla_dynamo.command_line.disk_cache.unwritable", lambda _: "no")
    finding = found()["folder"]
    assert (finding.value, finding.is_well) == (f"{folder.path}, read only", True)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_one_that_others_may_write_to(folder, tmp_path, monkeypatch):
    folder.path.chmod(0o777)
    assert "others may write to it" in found()["folder"].advice
    # A default folder like this is not used at all.
    default = tmp_path / "xla_dynamo"
    default.mkdir()
    default.chmod(0o770)
    monkeypatch.delenv("XLA_DYNAMO_CACHE_DIR")
    monkeypatch.setattr(cache_settings, "default_path", lambda: default)
    finding = found()["folder"]
    assert finding.value == "none"
    assert f"every process compiles anew: {default} is not used: others may" in finding.advice


def test_damaged_entries(folder):
    path = folder.file_of("executable", KEY)
    path.write_bytes(path.read_bytes()[:-1] + b"-")
    finding = found()["damage"]
    assert finding.value == "1 entry"
    assert "xla-dynamo cache clear" in finding.advice


def test_a_cache_that_is_turned_off(monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", "")
    finding = found()["folder"]
    assert (finding.value, finding.is_well) == ("none, as XLA_DYNAMO_CACHE_DIR is empty", True)


def test_a_wrong_limit(monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_MEGABYTES", "many")
    assert "must be a positive integer, not 'many'" in found()["settings"].advice
