"""Bytes of an entry to a file's contents and back, with a checksum over all of it.

A file begins with a line that names the format, and a line of JSON: the kind and the key of the
entry, the length of what follows, and its SHA-256. The rest are the entry's bytes as they are.
Reading a file runs no code from it.
"""

import hashlib
import json

FORMAT = b"xla_dynamo disk cache 1\n"
# Longer first lines than ours are not ours.
_LONGEST_HEADER = 4096


class DamagedEntry(Exception):
    """A file does not hold the entry that its name promises."""


def pack(kind: str, key: str, payload: bytes) -> list[bytes]:
    """The parts of a file for an entry."""
    header = {
        "kind": kind,
        "key": key,
        "length": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
    }
    return [FORMAT, json.dumps(header).encode() + b"\n", payload]


def unpack(kind: str, key: str, data: bytes) -> bytes:
    """The bytes of the entry in a file's contents.

    Raises:
        DamagedEntry: the contents are those of another entry, or not as they were written.
    """
    if not data.startswith(FORMAT):
        raise DamagedEntry("it begins like no file of this cache")
    end = data.find(b"\n", len(FORMAT), len(FORMAT) + _LONGEST_HEADER)
    try:
        header = json.loads(data[len(FORMAT) : end]) if end > 0 else None
        given = [header[name] for name in ("kind", "key", "length", "sha256")]  # type: ignore[index]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedEntry("its header cannot be read") from None
    if given[:2] != [kind, key]:
        raise DamagedEntry("it holds another entry")
    payload = data[end + 1 :]
    if given[2] != len(payload):
        raise DamagedEntry(f"it has {len(payload)} bytes where {given[2]!r} were written")
    if given[3] != hashlib.sha256(payload).hexdigest():
        raise DamagedEntry("its checksum is wrong")
    return payload
