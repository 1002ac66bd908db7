"""`cache ls` and `cache clear`. Each test has a folder of its own."""

import hashlib
import json
import os
import subprocess
import sys
import time

import pytest

from tests.runtime.disk_caches import cache_in
from xla_dynamo.command_line import main


def key(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def folder(tmp_path):
    """A folder with three entries, one of which is damaged, and others' files."""
    with cache_in(tmp_path) as folder:
        for kind, name in (("executable", "a"), ("program", "b"), ("executable", "c")):
            folder.write(kind, key(name), name.encode() * 2000)
        folder.file_of("executable", key("c")).write_bytes(b"not as it was")
        days_ago = time.time() - 10 * 86400
        os.utime(folder.file_of("program", key("b")), (days_ago, days_ago))
        (tmp_path / "notes.txt").write_text("mine")
        (tmp_path / f"executable-{key('folder')}").mkdir()
        yield folder


def test_the_entries_are_listed(folder, capsys):
    assert main(["cache", "ls"]) == 0
    said = capsys.readouterr().out
    assert "3 entries, 2 executables, 1 program; 4.3 KiB of 4.0 GiB" in said
    reason = "it begins like no file of this cache"
    assert f"executable {key('c')[:12]} is damaged and not used: {reason}" in said
    assert f"{folder.path}, writable" in said
    (damaged,) = (line for line in said.splitlines() if f"  {key('c')[:12]}  " in line)
    assert damaged.endswith("damaged")
    # Not a use of the entry: its place among those used longest ago is as before.
    before = folder.file_of("program", key("b")).stat().st_mtime
    assert time.time() - before > 9 * 86400


def test_json(folder, capsys):
    assert main(["cache", "ls", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["folder"] == str(folder.path)
    assert (listed["limit"], listed["readonly"], listed["unwritable"]) == (4 << 30, False, None)
    assert listed["entries"][-1]["key"] == key("b")
    damages = {entry["key"]: entry["damage"] for entry in listed["entries"]}
    assert damages[key("a")] is damages[key("b")] is None
    assert damages[key("c")] == "it begins like no file of this cache"


def test_only_our_entries_are_removed(folder, capsys):
    for name, age in (("left", 7200), ("busy", 0)):
        path = folder.path / f".writing-{name}"
        path.write_bytes(b"part")
        os.utime(path, (time.time() - age,) * 2)
    assert main(["cache", "clear"]) == 0
    said = capsys.readouterr().out
    assert "3 entries removed, 4.3 KiB" in said
    assert "1 file of killed processes removed" in said
    assert "1 file not removed: younger than an hour" in said
    left = sorted(path.name for path in folder.path.iterdir())
    assert left == [".writing-busy", f"executable-{key('folder')}", "notes.txt"]


def test_those_not_used_for_days_are_removed(folder, capsys):
    assert main(["cache", "clear", "--older-than", "9.5"]) == 0
    assert "1 entry removed" in capsys.readouterr().out
    assert not folder.file_of("program", key("b")).exists()
    assert folder.read("executable", key("a")) is not None
    with pytest.raises(SystemExit) as ended:
        main(["cache", "clear", "--older-than", "-1"])
    assert ended.value.code == 2


def test_a_folder_to_read_is_left_as_it_is(tmp_path, capsys):
    with cache_in(tmp_path) as folder:
        folder.write("executable", key("a"), b"a")
    with cache_in(tmp_path, readonly=True) as folder:
        assert main(["cache", "clear"]) == 1
        assert "only to be read" in capsys.readouterr().err
        assert folder.file_of("executable", key("a")).exists()
        assert main(["cache", "ls"]) == 0
        assert f"{tmp_path}, read only" in capsys.readouterr().out


def test_no_folder(tmp_path, monkeypatch, capsys):
    """One that no entry was written to yet, one that cannot be made, and a cache that is off."""
    with cache_in(tmp_path / "later"):
        assert main(["cache", "ls"]) == 0
        assert (
            f"0 entries; 0 B of 4.0 GiB\n{tmp_path / 'later'}, not made" in capsys.readouterr().out
        )
        assert main(["cache", "clear"]) == 0
        assert "0 entries removed" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    with cache_in(tmp_path / "file" / "cache"):
        assert main(["cache", "ls"]) == 0
        assert f"cannot be written to: {tmp_path / 'file'} is no folder" in capsys.readouterr().out
    with cache_in(None):
        monkeypatch.setenv("XLA_DYNAMO_CACHE_DIR", "")
        for action in ("ls", "clear"):
            assert main(["cache", action]) == 1
            assert "the disk cache is off: XLA_DYNAMO_CACHE_DIR is empty" in capsys.readouterr().err


def test_what_cannot_be_removed_is_told(folder, monkeypatch, capsys):
    def unlink(path, missing_ok=False):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.unlink", unlink)
    assert main(["cache", "clear"]) == 1
    said = capsys.readouterr()
    assert "0 entries removed" in said.out
    assert "3 could not be removed" in said.err
    assert f"{folder.file_of('program', key('b'))}: Permission denied" in said.err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are text")
@pytest.mark.parametrize("encoding", ["ascii:strict", "utf-8:strict"])
def test_a_path_that_the_terminal_cannot_show(tmp_path, encoding):
    run = subprocess.run(
        [sys.executable, "-m", "xla_dynamo", "cache", "ls"],
        env={
            **os.environ,
            "XLA_DYNAMO_CACHE_DIR": os.fsdecode(bytes(tmp_path) + b"/\xff \xc3\xbc"),
            "PYTHONIOENCODING": encoding,
        },
        capture_output=True,
    )
    assert run.returncode == 0, run.stderr
    assert b"\\udcff" in run.stdout
