"""Which folder this process caches in, and whether it does: by environment or by a call."""

import logging
import os
import pathlib
import stat
import sys
import threading

from xla_dynamo.errors import OptionError
from xla_dynamo.process_state import kept
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.switches.others import LOCALAPPDATA, XDG_CACHE_HOME
from xla_dynamo.switches.ours import CACHE_DIR, CACHE_MEGABYTES, CACHE_READ_ONLY

log = logging.getLogger("xla_dynamo")

_lock = threading.Lock()


class _Cache:
    def __init__(self) -> None:
        self.is_chosen = False
        self.folder: CacheFolder | None = None


_cache = kept(_Cache)


def initialize_cache(path: str | os.PathLike[str] | None, readonly: bool = False) -> None:
    """Choose the folder of the disk cache, as PyTorch/XLA's function of this name does.

    It holds from the next compilation on. Machine code is loaded from the folder: it must be one
    that only those write to whom you would let run programs as you.

    Args:
        path: the folder, which is made when the first entry is written; None turns the cache off.
        readonly: only read, so that many may share a folder that somebody else has filled.

    Raises:
        OptionError: the path has a NUL byte, or XLA_DYNAMO_CACHE_MEGABYTES is no positive integer.
    """
    if path is not None and "\0" in str(path):
        raise OptionError(f"the path of the disk cache has a NUL byte: {str(path)!r}")
    folder = None if path is None else CacheFolder(_absolute(path), _limit(), readonly)
    with _lock:
        _cache.folder, _cache.is_chosen = folder, True


def disk_cache() -> CacheFolder | None:
    """The folder that this process caches in; None if it does not.

    Raises:
        OptionError: XLA_DYNAMO_CACHE_MEGABYTES is no positive integer.
    """
    with _lock:
        if not _cache.is_chosen:
            _cache.folder, _cache.is_chosen = _from_environment(), True
        return _cache.folder


def _from_environment() -> CacheFolder | None:
    readonly = CACHE_READ_ONLY.get()
    given = CACHE_DIR.get()
    if given is not None:
        return CacheFolder(_absolute(given), _limit(), readonly) if given else None
    path = default_path()
    if path is None:
        return None
    if refusal := why_refused(path):
        log.warning("disk cache: %s is not used: %s", path, refusal)
        return None
    return CacheFolder(path, _limit(), readonly)


def _absolute(path: str | os.PathLike[str]) -> str:
    """A path that stays the same folder when the process goes to another one."""
    path = os.path.expanduser(path)
    try:
        return os.path.abspath(path)
    except OSError:  # the folder that the process is in has been removed
        return path


def why_off() -> str:
    """Why a process with these environment variables has no disk cache; "" where it has one."""
    if (given := CACHE_DIR.get()) is not None:
        return "" if given else f"{CACHE_DIR.name} is empty"
    path = default_path()
    if path is None:
        return f"the user has no folder of caches: name one by {CACHE_DIR.name}"
    refusal = why_refused(path)
    return f"{path} is not used: {refusal}" if refusal else ""


def _limit() -> int:
    return CACHE_MEGABYTES.get() << 20


def default_path() -> pathlib.Path | None:
    """The folder in the user's folder of caches; None if there is no such place."""
    if sys.platform == "win32":
        local = LOCALAPPDATA.get()
        return pathlib.Path(local, "xla_dynamo", "Cache") if local else None
    if sys.platform == "darwin":
        caches = os.path.expanduser("~/Library/Caches")
    else:
        caches = XDG_CACHE_HOME.get() or os.path.expanduser("~/.cache")
    return pathlib.Path(caches, "xla_dynamo") if os.path.isabs(caches) else None


def why_refused(path: pathlib.Path) -> str:
    """Why others can have put machine code where this process finds it by itself; "" else."""
    if not hasattr(os, "getuid"):
        return ""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return str(error)
    others_write = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid != os.getuid() or others_write:
        return (
            "others may write to it: make it yours alone (chmod go-w), or name a folder by "
            f"{CACHE_DIR.name}"
        )
    return ""
