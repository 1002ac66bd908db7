"""Where the disk cache is: by default, by environment variables, by a call; and where it is not."""

import os
import pathlib
import sys

import pytest

from tests.runtime.disk_caches import logged
from xla_dynamo import OptionError, runtime
from xla_dynamo.runtime.cache_settings import default_path, disk_cache


@pytest.fixture(autouse=True)
def nothing_is_chosen(monkeypatch, tmp_path):
    for name in ("DIR", "READ_ONLY", "MEGABYTES"):
        monkeypatch.delenv(f"XLA_DYNAMO_CACHE_{name}", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.skipif(sys.platform != "linux", reason="the folder of caches is Linux's")
def test_it_is_on_by_default(tmp_path, monkeypatch):
    folder = disk_cache()
    assert folder.path == tmp_path / "xla_dynamo" == default_path()
    assert not folder.readonly
    assert folder.limit == 4096 << 20
    assert disk_cache() is folder
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_path() == pathlib.Path.home() / ".cache" / "xla_dynamo"
    monkeypatch.setenv("XDG_CACHE_HOME", "no/absolute/path")
    assert default_path() is None


def test_environment_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("XLA_DYNAMO_CACHE_READ_ONLY", "1")
    monkeypatch.setenv("XLA_DYNAMO_CACHE_MEGABYTES", "5")
    folder = disk_cache()
    assert (folder.path, folder.readonly, folder.limit) == (tmp_path / "mine", True, 5 << 20)


def test_an_empty_name_turns_it_off(monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", "")
    assert disk_cache() is None


@pytest.mark.parametrize("given", ["none", "-1", "0", "1.5", ""])
def test_a_wrong_size_is_an_error(monkeypatch, given):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_MEGABYTES", given)
    with pytest.raises(OptionError, match="XLA_DYNAMO_CACHE_MEGABYTES must be a positive integer"):
        disk_cache()


def test_a_call_chooses(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", str(tmp_path / "other"))
    assert disk_cache().path == tmp_path / "other"
    runtime.initialize_cache(str(tmp_path / "mine"))
    assert (disk_cache().path, disk_cache().readonly) == (tmp_path / "mine", False)
    runtime.initialize_cache(tmp_path / "mine", readonly=True)
    assert disk_cache().readonly
    runtime.initialize_cache("~/mine")
    assert disk_cache().path == pathlib.Path.home() / "mine"
    runtime.initialize_cache(None)
    assert disk_cache() is None


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", "mine")
    assert disk_cache().write("program", "0" * 64, b"bytes")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert disk_cache().read("program", "0" * 64) == b"bytes"


def test_a_path_with_a_nul_byte_is_an_error():
    with pytest.raises(OptionError, match="NUL byte"):
        runtime.initialize_cache("a\0b")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owners")
def test_a_default_folder_that_others_may_write_to_is_not_used(tmp_path):
    folder = tmp_path / "xla_dynamo"
    folder.mkdir()
    folder.chmod(0o777)
    with logged() as lines:
        assert disk_cache() is None
    assert "others may write to it" in lines[0]


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs root")
def test_a_default_folder_of_somebody_else_is_not_used(tmp_path):
    folder = tmp_path / "xla_dynamo"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with logged() as lines:
        assert disk_cache() is None
    assert "others may write to it" in lines[0]
