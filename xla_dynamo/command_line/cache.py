"""Look at the disk cache, or empty it.

  xla-dynamo cache ls
  xla-dynamo cache clear --older-than 30

The folder is the one that a program with the same environment variables uses: see
XLA_DYNAMO_CACHE_DIR in docs/warm-start.md.
"""

import argparse
import datetime
import json
import os
import sys
from collections.abc import Sequence

from xla_dynamo.command_line.caches import count_of, find_cache, needs_writing, size_of, total_of
from xla_dynamo.command_line.failures import CommandFailure
from xla_dynamo.runtime.cache_contents import (
    Entry,
    being_written,
    clear,
    entries,
    unwritable,
)
from xla_dynamo.runtime.cache_folder import CacheFolder

SUMMARY = "ls lists the entries of the disk cache, clear removes them"
_DAY = 86400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own commands."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser(
        "ls", help="list the entries", description="Each entry, and whether its file is damaged."
    )
    listing.add_argument("--json", action="store_true", help="as JSON, with whole keys")
    listing.set_defaults(action=list_entries)
    removal = actions.add_parser(
        "clear",
        help="remove the entries",
        description="Remove the entries. Other files in the folder stay. Nothing is asked.",
    )
    removal.add_argument(
        "--older-than",
        type=_days,
        default=0.0,
        metavar="DAYS",
        help="only those that nobody has used for so many days",
    )
    removal.set_defaults(action=clear_entries)


def run(arguments: argparse.Namespace) -> int:
    """List or remove; returns the exit status.

    Raises:
        CommandFailure: there is no disk cache, or entries cannot be removed.
    """
    return arguments.action(find_cache(), arguments)


def list_entries(folder: CacheFolder, arguments: argparse.Namespace) -> int:
    """Print what is in the folder; entries that are damaged are no failure."""
    found = [(entry, entry.damage()) for entry in entries(folder)]
    (_print_json if arguments.json else _print_table)(folder, found)
    return 0


def clear_entries(folder: CacheFolder, arguments: argparse.Namespace) -> int:
    """Remove entries, and say how many."""
    needs_writing(folder, "nothing is removed")
    done = clear(folder, arguments.older_than * _DAY)
    print(f"{count_of(done.entries, 'entry', 'entries')} removed, {size_of(done.bytes)}")
    if done.left_behind:
        print(f"{count_of(done.left_behind, 'file')} of killed processes removed")
    if writing := len(being_written(folder)[0]):
        print(f"{count_of(writing, 'file')} not removed: younger than an hour, perhaps in writing")
    if done.failures:
        raise CommandFailure(
            "\n".join([f"{len(done.failures)} could not be removed:", *done.failures])
        )
    return 0


def _days(text: str) -> float:
    days = float(text)
    if not days >= 0:
        raise ValueError(text)
    return days


def _print_json(folder: CacheFolder, found: Sequence[tuple[Entry, str]]) -> None:
    listed = [
        {
            "kind": entry.kind,
            "key": entry.key,
            "bytes": entry.bytes,
            "last_used": entry.used,
            "damage": damage or None,
        }
        for entry, damage in found
    ]
    described = {
        "folder": str(folder.path),
        "limit": folder.limit,
        "readonly": folder.readonly,
        "unwritable": None if folder.readonly else unwritable(folder) or None,
        "entries": listed,
    }
    print(json.dumps(described, indent=1))


def _print_table(folder: CacheFolder, found: Sequence[tuple[Entry, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout, soft_wrap=True)
    if found:
        table = Table("kind", "key", box=None, pad_edge=False, header_style="bold")
        table.add_column("size", justify="right")
        table.add_column("last use")
        table.add_column("")
        for entry, damage in found:
            state = Text("damaged" if damage else "", "bold red")
            size, used = size_of(entry.bytes), _moment(entry.used)
            table.add_row(entry.kind, entry.key[:12], size, used, state)
        console.print(table)
    console.print(Text("\n".join(_totals(folder, found))))


def _totals(folder: CacheFolder, found: Sequence[tuple[Entry, str]]) -> list[str]:
    lines = [total_of(folder, [entry for entry, _ in found])]
    for entry, damage in found:
        if damage:
            lines.append(f"{entry.kind} {entry.key[:12]} is damaged and not used: {damage}")
    if left := len(being_written(folder)[1]):
        lines.append(f"{count_of(left, 'file')} of killed processes, which a later write removes")
    return [*lines, f"{folder.path}, {_state(folder)}"]


def _state(folder: CacheFolder) -> str:
    if folder.readonly:
        return "read only"
    if reason := unwritable(folder):
        return f"cannot be written to: {reason}"
    return "writable" if os.path.exists(folder.path) else "not made yet"


def _moment(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
