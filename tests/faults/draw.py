"""Faults drawn by lot: the same for the same seed, from every room and of every kind."""

import collections
import pathlib
import random

from docs import import_floors
from tests.faults.sites import KINDS, Fault, compiles, faults_of


def draw(root: pathlib.Path, count: int, seed: int) -> list[Fault]:
    """`count` faults of a checkout, or fewer if it has fewer, in the order of the text."""
    rng = random.Random(seed)
    rooms = faults_by_room(root)
    used: collections.Counter[str] = collections.Counter()
    drawn: list[Fault] = []
    for room in _rooms_to_draw_from(rooms, lines_by_room(root), count, rng):
        while rooms[room]:
            fault = _one_of(rooms[room], used, rng)
            rooms[room] = [f for f in rooms[room] if not _overlap(f, fault)]
            if compiles(fault, (root / fault.path).read_bytes()):
                drawn.append(fault)
                used[fault.kind] += 1
                break
    return sorted(drawn, key=lambda fault: (fault.path, fault.start, fault.kind))


def faults_by_room(root: pathlib.Path) -> dict[str, list[Fault]]:
    """Every fault of the package, by the room that it is in."""
    files = import_floors.sources(root)
    found: dict[str, list[Fault]] = {}
    for module, path in sorted(files.items()):
        faults = faults_of(str(path.relative_to(root)), path.read_bytes())
        found.setdefault(import_floors.room_of(module, files), []).extend(faults)
    return {room: faults for room, faults in found.items() if faults}


def lines_by_room(root: pathlib.Path) -> collections.Counter[str]:
    """How large each room is."""
    files = import_floors.sources(root)
    lines: collections.Counter[str] = collections.Counter()
    for module, path in files.items():
        lines[import_floors.room_of(module, files)] += path.read_bytes().count(b"\n")
    return lines


def _rooms_to_draw_from(
    rooms: dict[str, list[Fault]], lines: collections.Counter[str], count: int, rng: random.Random
) -> list[str]:
    """A room for each fault: every room once, and then those with the most lines for each."""
    chosen = rng.sample(sorted(rooms), min(count, len(rooms)))
    share = collections.Counter(chosen)
    while len(chosen) < min(count, sum(map(len, rooms.values()))):
        left = (room for room in sorted(rooms) if share[room] < len(rooms[room]))
        room = max(left, key=lambda room: lines[room] / share[room])
        chosen.append(room)
        share[room] += 1
    return chosen


def _one_of(faults: list[Fault], used: collections.Counter[str], rng: random.Random) -> Fault:
    """A fault of the kind that has been drawn the least."""
    kinds = sorted({f.kind for f in faults}, key=KINDS.index)
    rng.shuffle(kinds)
    kind = min(kinds, key=lambda kind: used[kind])
    return rng.choice([f for f in faults if f.kind == kind])


def _overlap(one: Fault, other: Fault) -> bool:
    return one.path == other.path and one.start < other.end and other.start < one.end
