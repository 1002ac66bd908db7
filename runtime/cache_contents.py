"""A folder of the disk cache as people see it: its entries are listed, checked and removed.

Nothing here counts as a use of an entry, so who looks at the cache does not change what is evicted.
"""

import dataclasses
import os
import pathlib
import stat
import time
import uuid

from xla_dynamo.runtime.cache_entries import DamagedEntry, unpack
from xla_dynamo.runtime.cache_folder import ENTRY, LEFT_BEHIND, WRITING, CacheFolder, contents


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A file that has the name of an entry.

    Attributes:
        kind: of the entry: "executable", "program" or "graph".
        key: a SHA-256 in hexadecimal digits.
        path: where it is.
        bytes: the size of the file.
        used: when it was written or last read, in seconds since the epoch.
    """

    kind: str
    key: str
    path: pathlib.Path
    bytes: int
    used: float

    def damage(self) -> str:
        """Why its file is no entry that is used; "" where it is as it was written."""
        try:
            unpack(self.kind, self.key, contents(self.path))
        except (DamagedEntry, OSError, MemoryError) as error:
            return str(error) or type(error).__name__
        return ""


@dataclasses.dataclass(frozen=True, slots=True)
class Cleared:
    """What `clear` did.

    Attributes:
        entries: how many it removed.
        bytes: how large these were together.
        left_behind: how many files of killed processes it removed.
        failures: what could not be removed, each with the reason.
    """

    entries: int
    bytes: int
    left_behind: int
    failures: tuple[str, ...]


def entries(folder: CacheFolder) -> list[Entry]:
    """The entries of a folder, the one that was used last first."""
    found = []
    for path, status in folder.files():
        if stat.S_ISREG(status.st_mode) and ENTRY.fullmatch(path.name):
            kind, _, key = path.name.partition("-")
            found.append(Entry(kind, key, path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: (-entry.used, entry.path))


def being_written(folder: CacheFolder) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """The files that processes are writing, and those that killed ones have left.

    A file counts as left when it is an hour old, as it does for who writes to the folder.
    """
    writing: list[pathlib.Path] = []
    left: list[pathlib.Path] = []
    for path, status in folder.files():
        if stat.S_ISREG(status.st_mode) and path.name.startswith(WRITING):
            is_left = time.time() - status.st_mtime > LEFT_BEHIND
            (left if is_left else writing).append(path)
    return writing, left


def clear(folder: CacheFolder, older_than: float = 0.0) -> Cleared:
    """Remove entries and what killed processes left; other files stay, and so does the folder.

    A process that runs has what it needs in memory; to it, a removed entry is a miss.

    Args:
        folder: the folder, which is not read-only.
        older_than: only entries that nobody has used for so many seconds.
    """
    assert not folder.readonly
    limit, failures = time.time() - older_than, []
    removed, size, left_behind = 0, 0, 0
    for entry in entries(folder):
        if older_than and entry.used > limit:
            continue
        if failure := _remove(entry.path):
            failures.append(failure)
        else:
            removed, size = removed + 1, size + entry.bytes
    for path in being_written(folder)[1]:
        if failure := _remove(path):
            failures.append(failure)
        else:
            left_behind += 1
    return Cleared(removed, size, left_behind, tuple(failures))


def unwritable(folder: CacheFolder) -> str:
    """Why no entry can be written to a folder; "" where one can.

    A file is made and removed, where the folder is there: permissions alone tell of no full disk
    and of no read-only file system. A folder that is not there is not made.
    """
    if not os.path.exists(folder.path):  # pathlib's raises what it is not permitted to look at
        above = next(path for path in folder.path.absolute().parents if os.path.exists(path))
        if not above.is_dir():
            return f"{above} is no folder"
        return "" if os.access(above, os.W_OK | os.X_OK) else f"{above} is not writable"
    beside = folder.path / f"{WRITING}{uuid.uuid4().hex}"
    try:
        beside.write_bytes(b"-")
    except OSError as error:
        return error.strerror or str(error)
    finally:
        _remove(beside)
    return ""


def _remove(path: pathlib.Path) -> str:
    """Remove a file; why that failed, or ""."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    return ""
