"""A folder of entries: reads, atomic writes, and the removal of those used longest ago.

An entry is a file that appears whole, by a rename, and is never written into afterwards. So readers
need no lock, and of several processes that write one entry the last one's copy stays. Nothing that
goes wrong with a file is an error for whoever asked: it is a miss, and the log says why.
"""

import contextlib
import logging
import os
import pathlib
import re
import stat
import threading
import time
import uuid

from xla_dynamo.runtime import metrics
from xla_dynamo.runtime.cache_entries import DamagedEntry, pack, unpack

log = logging.getLogger("xla_dynamo")

ENTRY = re.compile(r"[a-z]+-[0-9a-f]{64}")
WRITING = ".writing-"
# A file that is being written is older than this, in seconds, only if its process was killed.
LEFT_BEHIND = 3600.0
# After an eviction this share of the limit is in use, so that not every write evicts.
_KEPT = 0.9


class CacheFolder:
    """Entries by kind and key, in one folder.

    Attributes:
        path: the folder, which the first write makes.
        limit: how many bytes its entries may have together.
        readonly: whether nothing in it is to change: no entry, no time of its last use.
        written: the names of the entries that were written by way of this object.
        found: the names of those that were read.
    """

    def __init__(
        self, path: str | os.PathLike[str], limit: int = 4 << 30, readonly: bool = False
    ) -> None:
        """Take a folder, which need not exist."""
        self.path, self.limit, self.readonly = pathlib.Path(path), limit, readonly
        self._lock = threading.Lock()
        self._in_use: int | None = None  # bytes, as far as this process knows
        self._writable = True
        self.written: list[str] = []
        self.found: list[str] = []

    def file_of(self, kind: str, key: str) -> pathlib.Path:
        """Where an entry is, if it is there. The key is a SHA-256 in hexadecimal digits."""
        return self.path / f"{kind}-{key}"

    def read(self, kind: str, key: str) -> bytes | None:
        """The bytes of an entry; None if it is not there, is damaged or cannot be read."""
        path = self.file_of(kind, key)
        try:
            payload = unpack(kind, key, contents(path))
        except FileNotFoundError:
            log.info("disk cache: no %s %s", kind, key[:12])
            return None
        except (DamagedEntry, OSError, MemoryError) as error:
            metrics.increment("PersistentCacheDamagedEntry")
            log.warning("disk cache: %s is not used: %s", path, error)
            return None
        if not self.readonly:
            with contextlib.suppress(OSError):  # somebody else's file
                os.utime(path)
        self.found.append(path.name)
        return payload

    def write(self, kind: str, key: str, payload: bytes) -> bool:
        """Write an entry, whether it is there or not; whether it was written."""
        if self.readonly or not self._writable:
            return False
        parts = pack(kind, key, payload)
        length = sum(map(len, parts))
        if length > self.limit:
            log.info("disk cache: a %s of %d bytes is above the limit", kind, length)
            return False
        path = self.file_of(kind, key)
        try:
            _write_whole(path, parts)
        except OSError as error:
            # Once: what fails now will fail again, and each try costs time.
            self._writable = False
            log.warning(
                "disk cache: %s cannot be written to (%s): this process compiles without saving",
                self.path,
                error,
            )
            return False
        self.written.append(path.name)
        self._make_room(length)
        return True

    def _make_room(self, written: int) -> None:
        """Remove the entries used longest ago where there are too many."""
        with self._lock:
            if self._in_use is not None:
                self._in_use += written
            if self._in_use is None or self._in_use > self.limit:
                self._in_use = self._evict()

    def _evict(self) -> int:
        """Hold the limit, and remove what killed processes left; the bytes that are in use."""
        entries, total = [], 0
        for path, status in self.files():
            if path.name.startswith(WRITING):
                if time.time() - status.st_mtime > LEFT_BEHIND:
                    _remove(path)
            elif ENTRY.fullmatch(path.name):
                entries.append((status.st_mtime_ns, status.st_size, path))
                total += status.st_size
        if total <= self.limit:
            return total
        for _, size, path in sorted(entries):
            if total <= self.limit * _KEPT:
                break
            _remove(path)
            total -= size
        return total

    def files(self) -> list[tuple[pathlib.Path, os.stat_result]]:
        """The files in the folder, whosever they are, with the status of each, links included."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.path) as listing:
            for each in listing:
                with contextlib.suppress(OSError):  # somebody else removed it
                    found.append((pathlib.Path(each.path), each.stat(follow_symlinks=False)))
        return found


def contents(path: pathlib.Path) -> bytes:
    """The bytes of a file.

    Raises:
        DamagedEntry: it is a folder, a pipe or a device, which may never end.
        OSError: it cannot be read.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DamagedEntry("it is no ordinary file")
        return file.read()


def _write_whole(path: pathlib.Path, parts: list[bytes]) -> None:
    """Let a file appear with all of its contents, or not at all, also if the machine stops."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.parent / f"{WRITING}{uuid.uuid4().hex}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(beside, flags, 0o644), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        _remove(beside)
        raise


def _remove(path: pathlib.Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
