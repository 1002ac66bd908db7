"""Cut out the records that have to run to compute some values: a slice, with a key.

Slices that agree operator by operator and size by size have equal keys, whichever tensors and
changing numbers they are called with. So the second step of a loop finds the program of the first.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from xla_dynamo.lazy import donations, memory
from xla_dynamo.lazy.contents import Value, live_cells, marked_shardings
from xla_dynamo.lazy.manual_regions import ENTRY, EXIT, is_shard
from xla_dynamo.lazy.records import Record
from xla_dynamo.runtime import marks
from xla_dynamo.runtime.mesh import Mesh, Sharding

# Operators that say over which mesh.
_WITH_MESHES = ("xla::mark_sharding", ENTRY, EXIT)


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
    """How a program is partitioned over the devices of a mesh.

    Attributes:
        mesh: the mesh.
        given: how each input is sharded.
        asked: how each output is to be sharded; None where that is left to the partitioner.
    """

    mesh: Mesh
    given: tuple[Sharding, ...]
    asked: tuple[Sharding | None, ...]


@dataclasses.dataclass(slots=True)
class Slice:
    """Records in the order they were made, and what flows in and out.

    Attributes:
        records: with all that they need but `inputs`.
        inputs: values that are there.
        outputs: values that somebody may still read.
        numbers: the changing numbers of all records.
        keys: what the records draw from that are random.
        firsts: of the result `index` of a record, `firsts[record.order] + index` is its number.
        replaced: of each output, the number of the input whose cell and memory it takes, or -1.
        division: how the program is partitioned over a mesh; None for a program of one device.
        key: equal for programs that are alike.
    """

    records: list[Record]
    inputs: list[Value]
    outputs: list[Value]
    numbers: list[float]
    keys: list[int]
    firsts: dict[int, int]
    replaced: list[int]
    division: Division | None
    key: Any


def cut(roots: Iterable[Value] | None) -> Slice | None:
    """The slice behind some values, or behind all that live; None if there is nothing to do.

    To be called with `contents.lock`.
    """
    live = {id(cell.value): cell.value for cell in live_cells()}
    everything = roots is None
    wanted = live.values() if roots is None else roots
    records = _behind([v for v in wanted if v.record is not None])
    if not records:
        return None
    firsts = _numbered(records)
    inputs: list[Value] = []
    known: dict[int, int] = {}
    program: list[int] = []
    numbers: list[float] = []
    for record in records:
        program.append(record.recipe.number)
        for arg in record.inputs:
            value = arg.value
            if value.record is not None:
                program.append(firsts[value.record.order] + value.index)
                continue
            number = known.get(id(value))
            if number is None:
                number = known[id(value)] = len(inputs)
                inputs.append(value)
            program.append(-1 - number)
        numbers += record.numbers
    outputs = [
        v
        for v in live.values()
        if v.record is not None and v.record.order in firsts and not is_shard(v)
    ]
    if not everything:
        outputs += _others(wanted, records, outputs)
    replaced = _replaced(outputs, known, live) if everything else [-1] * len(outputs)
    division = _division(records, inputs, outputs) if marks.were_ever_there() else None
    if donations.marked and division is None:
        donations.assign(inputs, outputs, replaced, everything)
    key = (
        tuple(program),
        tuple([(v.geometry[0], v.geometry[1], v.geometry[2]) for v in inputs]),
        tuple([firsts[v.record.order] + v.index for v in outputs if v.record is not None]),
        tuple(replaced),
        division,
    )
    keys = [r.key for r in records if r.key is not None]
    return Slice(records, inputs, outputs, numbers, keys, firsts, replaced, division, key)


def narrowed(part: Slice, outputs: Sequence[Value]) -> Slice:
    """A slice whose outputs are these alone, and take nobody's memory."""
    division = _division(part.records, part.inputs, outputs) if marks.were_ever_there() else None
    program, given, *_ = part.key
    numbers = [part.firsts[v.record.order] + v.index for v in outputs if v.record is not None]
    key = (program, given, tuple(numbers), division)
    replaced = [-1] * len(outputs)
    return dataclasses.replace(
        part, outputs=list(outputs), replaced=replaced, division=division, key=key
    )


def _division(
    records: Sequence[Record], inputs: Sequence[Value], outputs: Sequence[Value]
) -> Division | None:
    """How the program of a slice is partitioned: as its inputs are, and as marks ask for."""
    given = [memory.sharding_of(v) for v in inputs]
    marked = marked_shardings()
    asked = tuple(marked.get(id(v)) for v in outputs)
    found = [s.mesh for s in (*given, *asked) if s is not None]
    found += [_mesh_of(r) for r in records if r.recipe.signature.name in _WITH_MESHES]
    mesh = next((m for m in found if m.size() > 1), None)
    if mesh is None:
        return None
    whole = (Sharding(mesh, ((),) * len(v.geometry[1])) for v in inputs)
    return Division(mesh, tuple(s or w for s, w in zip(given, whole, strict=True)), asked)


def _mesh_of(record: Record) -> Mesh:
    """The mesh of a record of a mark, or of an end of a manual region."""
    _, device_ids, mesh_shape, axis_names, *_ = record.args
    return Mesh(device_ids, mesh_shape, axis_names)


def _behind(values: Sequence[Value]) -> list[Record]:
    """The records that values need, in the order they were made."""
    found = {v.record.order: v.record for v in values if v.record is not None}
    stack = list(found.values())
    while stack:
        record = stack.pop()
        for arg in record.inputs:
            needed = arg.value.record
            if needed is not None and needed.order not in found:
                found[needed.order] = needed
                stack.append(needed)
    return [found[order] for order in sorted(found)]


def _numbered(records: Sequence[Record]) -> dict[int, int]:
    firsts, results = {}, 0
    for record in records:
        firsts[record.order] = results
        results += record.count
    return firsts


def _others(
    wanted: Iterable[Value], records: Sequence[Record], outputs: Sequence[Value]
) -> list[Value]:
    """What must be kept beside what lives: the roots, and draws that pending records may read."""
    drawn = [made() for record in records for made in record.drawn]
    given = [v for v in (*wanted, *drawn) if v is not None and v.record is not None]
    every = [v for v in given if not is_shard(v)]
    known = set(map(id, outputs))
    return [v for i, v in {id(v): v for v in every}.items() if i not in known]


def _replaced(
    outputs: Sequence[Value],
    inputs: dict[int, int],
    live: dict[int, Value],
) -> list[int]:
    """Of each output, the input whose memory it may take: what its cell had before.

    When all that lives is computed, nobody can read an input any more that no cell has.
    """
    taken: set[int] = set()
    found = []
    for output in outputs:
        number = -1
        value = output
        while value.record is not None and value.index < len(value.record.overwritten):
            value = value.record.overwritten[value.index]
        if value.record is None and value is not output and id(value) in inputs:
            number = inputs[id(value)]
            if id(value) in live or value.geometry != output.geometry or number in taken:
                number = -1
        taken.add(number)
        found.append(number)
    return found
