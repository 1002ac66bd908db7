"""Names of `torch_xla.utils.gcsfs`: files of this machine, and of Google Cloud Storage by fsspec.

A path that begins with gs:// needs the library gcsfs, which fsspec asks for.
"""

import builtins
import glob
import os
import posixpath
from typing import IO, Any, NamedTuple

import fsspec

CLOUD_STORAGE_PREFIX = "gs://"


class GcsBlob(NamedTuple):
    """A file.

    Attributes:
        path: its path, with gs:// and the bucket.
        size: its bytes.
        mtime: when it was changed, in seconds as `time.time()`.
        isdir: whether it is a folder.
    """

    path: str
    size: int
    mtime: float
    isdir: bool


def is_gcs_path(path: str) -> bool:
    """Whether a path begins with gs://."""
    return path.startswith(CLOUD_STORAGE_PREFIX)


def _storage(path: str) -> tuple[Any, str]:
    """The file system of a path, and the path there.

    Raises:
        ImportError: the library for it is not installed.
    """
    return fsspec.core.url_to_fs(path)


def _blob(system: Any, info: dict[str, Any]) -> GcsBlob:
    changed = info.get("mtime", info.get("updated", 0.0))
    if hasattr(changed, "timestamp"):
        changed = changed.timestamp()
    path = system.unstrip_protocol(info["name"]).removeprefix("file://")
    return GcsBlob(path, info["size"] or 0, changed or 0.0, info["type"] == "directory")


def open(path: str, mode: str = "r", encoding: str | None = None) -> IO[Any]:
    """Open a file, as Python's `open`; one of Cloud Storage is written when it is closed."""
    system, there = _storage(path)
    return system.open(there, mode, encoding=encoding)


def list(path: str) -> builtins.list[GcsBlob]:
    """The files of a folder, or those that a pattern with * names."""
    system, there = _storage(path)
    if glob.has_magic(there):
        found = system.glob(there, detail=True).values()
    else:
        found = system.ls(there, detail=True)
    return sorted(_blob(system, info) for info in found)


def stat(path: str) -> GcsBlob:
    """What is known of a file.

    Raises:
        FileNotFoundError: it is not there.
    """
    system, there = _storage(path)
    return _blob(system, system.info(there))


def remove(path: str) -> None:
    """Remove a file.

    Raises:
        FileNotFoundError: it is not there.
    """
    system, there = _storage(path)
    system.rm_file(there)


def rmtree(path: str) -> None:
    """Remove a folder, or all that a pattern with * names."""
    system, there = _storage(path)
    system.rm(system.glob(there) if glob.has_magic(there) else there, recursive=True)


def read(path: str) -> bytes:
    """The bytes of a file.

    Raises:
        FileNotFoundError: it is not there.
    """
    system, there = _storage(path)
    return system.cat_file(there)


def write(path: str, content: Any) -> None:
    """Write text, bytes, or what a file object has, to a file."""
    if not isinstance(content, bytes | str):
        content = content.read()
    system, there = _storage(path)
    system.pipe_file(there, content.encode() if isinstance(content, str) else content)


def rename(path: str, new: str) -> None:
    """Give a file another path, in the place of a file that had it."""
    system, there = _storage(path)
    system.mv(there, _storage(new)[1])


generic_open = open
generic_read = read


def generic_write(output_string: str | bytes, path: str, makedirs: bool = False) -> None:
    """Write text or bytes to a file; `makedirs` makes the folders that it lies in."""
    if makedirs:
        system, there = _storage(path)
        system.makedirs(posixpath.dirname(there), exist_ok=True)
    write(path, output_string)


def generic_glob(path: str, recursive: bool = False) -> builtins.list[str]:
    """The paths that a pattern with * names; with `recursive`, ** is folders of any depth."""
    if not is_gcs_path(path):
        return glob.glob(os.fspath(path), recursive=recursive)
    system, there = _storage(path)
    return [CLOUD_STORAGE_PREFIX + found for found in system.glob(there)]
