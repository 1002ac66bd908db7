"""The folder of the disk cache for a command, or why there is none."""

import collections
from collections.abc import Sequence

from xla_dynamo.command_line.failures import CommandFailure
from xla_dynamo.errors import OptionError
from xla_dynamo.runtime.cache_contents import Entry
from xla_dynamo.runtime.cache_folder import CacheFolder
from xla_dynamo.runtime.cache_settings import disk_cache, why_off
from xla_dynamo.switches.ours import CACHE_READ_ONLY


def find_cache() -> CacheFolder:
    """The folder that processes with these environment variables cache in.

    Raises:
        CommandFailure: there is none, or a variable has no such value.
    """
    try:
        folder = disk_cache()
    except OptionError as error:
        raise CommandFailure(str(error)) from error
    if folder is None:
        raise CommandFailure(f"the disk cache is off: {why_off() or 'this process has none'}")
    return folder


def needs_writing(folder: CacheFolder, what: str) -> None:
    """Raise CommandFailure where a folder is only to be read."""
    if folder.readonly:
        raise CommandFailure(
            f"{folder.path} is only to be read, as {CACHE_READ_ONLY.name} says, so {what}: unset it"
        )


def total_of(folder: CacheFolder, found: Sequence[Entry]) -> str:
    """How many entries there are of each kind, and their bytes of the folder's limit."""
    kinds = collections.Counter(entry.kind for entry in found)
    by_kind = [count_of(number, kind) for kind, number in sorted(kinds.items())]
    counts = ", ".join([count_of(len(found), "entry", "entries"), *by_kind])
    size = sum(entry.bytes for entry in found)
    return f"{counts}; {size_of(size)} of {size_of(folder.limit)}"


def size_of(count: float) -> str:
    """A number of bytes for people: "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun: "1 entry", "2 entries"."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
