"""The disk cache as `doctor` finds it: where, how full, whether it is written to and by whom."""

import os
import stat
from collections.abc import Iterator

from xla_dynamo.command_line.caches import count_of, total_of
from xla_dynamo.command_line.findings import Finding
from xla_dynamo.errors import OptionError
from xla_dynamo.runtime.cache_contents import entries, unwritable
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.runtime.cache_settings import disk_cache, why_off
from xla_dynamo.switches.ours import CACHE_DIR


def check_disk_cache() -> Iterator[Finding]:
    """The folder and what is in it."""
    off = why_off()
    if off:
        is_asked_for = CACHE_DIR.get() == ""
        advice = f"every process compiles anew: {off}" if not is_asked_for else ""
        yield Finding("folder", f"none, as {off}" if is_asked_for else "none", advice)
        return
    try:
        folder = disk_cache()
    except OptionError as error:
        yield Finding("settings", "wrong", f"{error}: every compilation fails")
        return
    if folder is None:
        yield Finding("folder", "none, as this process has turned it off")
        return
    yield _folder(folder)
    found = entries(folder)
    yield Finding("entries", total_of(folder, found))
    if damaged := sum(bool(entry.damage()) for entry in found):
        advice = (
            "they are not used, and written anew when they are compiled again; where more come, "
            "something else writes to the folder, or the disk fails: see xla-dynamo cache ls, and "
            "remove all by xla-dynamo cache clear"
        )
        yield Finding("damage", count_of(damaged, "entry", "entries"), advice)


def _folder(folder: CacheFolder) -> Finding:
    if folder.readonly:
        return Finding("folder", f"{folder.path}, read only", _open_to_all(folder))
    if reason := unwritable(folder):
        advice = (
            f"nothing new is kept ({reason}): make it writable, or name another folder by "
            f"{CACHE_DIR.name}"
        )
        return Finding("folder", f"{folder.path}, cannot be written to", advice)
    state = "writable" if os.path.exists(folder.path) else "made when the first entry is written"
    return Finding("folder", f"{folder.path}, {state}", _open_to_all(folder))


def _open_to_all(folder: CacheFolder) -> str:
    """What is wrong with a folder that every user of the machine may write to; "" else.

    A folder that is named may belong to a group that shares it.
    """
    if not hasattr(os, "getuid") or not os.path.exists(folder.path):
        return ""
    if not folder.path.stat().st_mode & stat.S_IWOTH:
        return ""
    return (
        "others may write to it, and machine code is loaded from it: chmod o-w, or name another "
        f"folder by {CACHE_DIR.name}"
    )
