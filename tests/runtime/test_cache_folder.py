"""A folder of cached entries: whole files or none, a limit, and nothing that fails is an error."""

import hashlib
import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from tests.runtime.disk_caches import logged
from xla_dynamo.runtime import cache_folder
from xla_dynamo.runtime.cache_folder import CacheFolder


def key(text):
    return hashlib.sha256(text.encode()).hexdigest()


def names(path):
    return {each.name for each in path.iterdir()}


def test_an_entry_is_read_as_it_was_written(tmp_path):
    folder = CacheFolder(tmp_path / "made" / "here")
    payload = os.urandom(1 << 16) + b"\n{}"
    assert folder.read("executable", key("a")) is None
    assert folder.write("executable", key("a"), payload)
    assert folder.read("executable", key("a")) == payload
    assert folder.read("program", key("a")) is None
    assert CacheFolder(folder.path).read("executable", key("a")) == payload
    assert (folder.path.stat().st_mode & 0o777) == 0o700


def test_the_last_copy_stays(tmp_path):
    folder = CacheFolder(tmp_path)
    for payload in (b"first", b"second"):
        assert folder.write("executable", key("a"), payload)
    assert folder.read("executable", key("a")) == b"second"
    assert len(names(tmp_path)) == 1


def test_the_entries_used_longest_ago_are_removed(tmp_path):
    folder = CacheFolder(tmp_path, limit=10_000)
    stranger = tmp_path / "notes.txt"
    stranger.write_text("not ours" * 1000)
    for number in range(8):
        folder.write("executable", key(str(number)), bytes(1000))
        os.utime(folder.file_of("executable", key(str(number))), (number, number))
    assert folder.read("executable", key("0")) is not None  # which uses it
    for number in range(8, 12):
        folder.write("executable", key(str(number)), bytes(1000))
    there = [n for n in range(12) if folder.file_of("executable", key(str(n))).exists()]
    assert {0, 10, 11} <= set(there)
    assert not {1, 2} & set(there)
    assert sum(f.stat().st_size for f in tmp_path.glob("executable-*")) <= 10_000
    assert stranger.exists()
    assert not folder.write("executable", key("large"), bytes(10_001))


def test_the_limit_holds_for_what_others_have_written(tmp_path):
    for number in range(20):
        CacheFolder(tmp_path, limit=10_000).write("executable", key(str(number)), bytes(1000))
        os.utime(tmp_path / f"executable-{key(str(number))}", (number, number))
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 10_000
    assert CacheFolder(tmp_path).read("executable", key("19")) == bytes(1000)


def test_a_folder_to_read_is_left_as_it_is(tmp_path):
    CacheFolder(tmp_path).write("executable", key("a"), b"payload")
    path = tmp_path / f"executable-{key('a')}"
    os.utime(path, (1, 1))
    folder = CacheFolder(tmp_path, readonly=True)
    assert folder.read("executable", key("a")) == b"payload"
    assert not folder.write("executable", key("b"), b"payload")
    path.write_bytes(b"damaged")
    os.utime(path, (1, 1))
    assert folder.read("executable", key("a")) is None
    assert names(tmp_path) == {path.name}
    assert path.stat().st_mtime == 1


def _folder(path):
    path.mkdir()


def _pipe(path):
    os.mkfifo(path)


def _loop(path):
    path.symlink_to(path)


def _headers(path):
    path.write_bytes(b"xla_dynamo disk cache 1\n" + b"[" * 3000 + b"\n")


@pytest.mark.parametrize("make", [_folder, _pipe, _loop, _headers])
def test_what_is_no_entry_is_a_logged_miss(tmp_path, make):
    folder = CacheFolder(tmp_path)
    make(folder.file_of("executable", key("a")))
    with logged() as lines:
        assert folder.read("executable", key("a")) is None
    assert len(lines) == 1
    assert "is not used" in lines[0]


def test_a_file_that_is_too_large_is_a_warning(tmp_path):
    """As a full disk: the write fails halfway."""
    folder = CacheFolder(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
        with logged() as lines:
            assert not folder.write("executable", key("a"), bytes(100_000))
            assert not folder.write("executable", key("b"), b"payload")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(lines) == 1  # said once
    assert "compiles without saving" in lines[0]
    assert not names(tmp_path)


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_full_disk_is_a_warning(tmp_path, monkeypatch, call):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    folder = CacheFolder(tmp_path)
    folder.write("executable", key("a"), b"payload")
    with monkeypatch.context() as patched, logged() as lines:
        patched.setattr(cache_folder.os, call, full)
        assert not folder.write("executable", key("b"), b"payload")
    assert "No space left" in lines[0]
    assert len(names(tmp_path)) == 1
    assert folder.read("executable", key("a")) == b"payload"


_DENIED = """
import logging, os, sys
from xla_dynamo.runtime.cache_folder import CacheFolder
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)  # whom nothing in the folder belongs to
folder = CacheFolder(sys.argv[1])
assert folder.read("executable", sys.argv[2]) == b"payload"
assert not folder.write("executable", sys.argv[3], b"payload")
closed = CacheFolder(sys.argv[1] + "/closed")
assert closed.read("executable", sys.argv[2]) is None
assert not closed.write("executable", sys.argv[2], b"payload")
"""


@pytest.fixture
def open_to_all(tmp_path):
    """The test's folder, which other users may reach; pytest makes it for its own user."""
    changed = [p for p in (tmp_path, *tmp_path.parents) if p.stat().st_uid == os.getuid()]
    before = [(p, p.stat().st_mode) for p in changed if p.stat().st_mode & 0o5 != 0o5]
    for path, mode in before:
        if "pytest" in str(path):  # in one of pytest's folders, whoever made it
            path.chmod(mode | 0o5)
    yield tmp_path
    for path, mode in before:
        path.chmod(mode)


def test_no_permission_is_a_warning(open_to_all):
    path = open_to_all
    folder = CacheFolder(path)
    folder.write("executable", key("a"), b"payload")
    folder.file_of("executable", key("a")).chmod(0o644)  # whatever the umask is
    (path / "closed").mkdir()
    (path / "closed").chmod(0)
    path.chmod(0o555)
    arguments = [str(path), key("a"), key("b")]
    run = subprocess.run(
        [sys.executable, "-c", _DENIED, *arguments], capture_output=True, text=True
    )
    path.chmod(0o755)
    (path / "closed").chmod(0o700)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("Permission denied") == 3  # a write, a read, and a write
    assert names(path) == {f"executable-{key('a')}", "closed"}


_KILLED = """
import os, signal, sys
from xla_dynamo.runtime import cache_folder
last, calls = int(sys.argv[2]), 0
def counting(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
for name in ("open", "fsync", "replace", "fdopen"):
    setattr(os, name, counting(getattr(os, name)))
folder = cache_folder.CacheFolder(sys.argv[1])
for number in range(2):
    folder.write("executable", sys.argv[3], os.urandom(300_000))
"""


def test_a_killed_process_leaves_nothing_that_is_read(tmp_path):
    """It is killed before each call that touches a file of two writes, with bytes on their way."""
    for last in range(1, 10):
        arguments = [str(tmp_path), str(last), key(str(last))]
        run = subprocess.run([sys.executable, "-c", _KILLED, *arguments], capture_output=True)
        assert run.returncode == (-signal.SIGKILL if last <= 8 else 0), run.stderr
        payload = CacheFolder(tmp_path).read("executable", key(str(last)))
        assert (payload is not None) == (last > 4)
        assert payload is None or len(payload) == 300_000
    left = [n for n in names(tmp_path) if n.startswith(".writing-")]
    assert len(left) == 6  # in each write before the file was made there was nothing to leave
    for name in left:
        os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    CacheFolder(tmp_path).write("executable", key("a"), b"payload")
    assert not [n for n in names(tmp_path) if n.startswith(".writing-")]
