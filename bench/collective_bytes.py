"""Read the collectives of a program from its optimized HLO, and the bytes that each device sends.

XLA's own count of bytes accessed does not tell what crosses the network. Counted is what the ring
algorithms send, which is the least that any can: of n devices, one of an all-gather, all-to-all or
reduce-scatter sends (n - 1) / n of the whole array, one of an all-reduce twice as much.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bench.replica_groups import Groups, groups_of, pairs_of
from xla_dynamo.reports.hlo_text import Instruction, arrays_of, parse

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective of a program, as often as it runs.

    Attributes:
        kind: one of KINDS.
        bytes: of the whole array that a group has together: what comes out of an all-gather, goes
            into a reduce-scatter, and both of an all-reduce; of a permute, what one device sends.
        groups: the devices that take part together; of a permute, those it goes from and to.
        times: how often it runs in a call of the program, in loops of a known length.
    """

    kind: str
    bytes: int
    groups: Groups
    times: int = 1

    @property
    def size(self) -> int:
        """The number of devices of a group."""
        return max(map(len, self.groups))

    def sent(self) -> float:
        """The bytes that one device sends in a call, in the mean."""
        if self.kind == "collective-permute":
            devices = {device for pair in self.groups for device in pair}
            moving = sum(source != target for source, target in self.groups)
            return self.times * self.bytes * moving / max(len(devices), 1)
        passes = 2 if self.kind == "all-reduce" else 1
        return self.times * passes * self.bytes * (self.size - 1) / self.size


def collectives(hlo: str) -> list[Collective]:
    """The collectives of an optimized module.

    Raises:
        ValueError: one of them cannot be read, or is in a loop whose length is not known.
    """
    module = parse(hlo)
    found: dict[str, list[Collective]] = {}
    calls: dict[str, list[tuple[str, int | None]]] = {}
    for name, body in module.computations.items():
        read = (_read(one, module.partitions) for one in body)
        found[name] = [one for one in read if one is not None]
        calls[name] = [
            (called, one.trip_count if one.opcode == "while" else 1)
            for one in body
            for called in one.called
        ]
    return list(_repeated(module.entry, 1, found, calls))


def _repeated(
    computation: str,
    times: int | None,
    found: Mapping[str, Sequence[Collective]],
    calls: Mapping[str, Sequence[tuple[str, int | None]]],
) -> Iterator[Collective]:
    """The collectives of a computation and of those it calls."""
    for one in found.get(computation, ()):
        if times is None:
            raise ValueError(f"{one.kind} in {computation}, a loop whose length HLO does not tell")
        yield dataclasses.replace(one, times=times)
    for name, repeats in calls.get(computation, ()):
        inner = None if times is None or repeats is None else times * repeats
        yield from _repeated(name, inner, found, calls)


def _read(instruction: Instruction, devices: int) -> Collective | None:
    """The collective of an instruction; None of any other."""
    result, kind = instruction.result, instruction.opcode
    starts = kind.endswith("-start")
    kind = kind.removesuffix("-start")
    if kind not in KINDS:
        return None
    arrays = _arrays(result)
    if starts and kind != "all-reduce":  # (operands, results, what the platform keeps)
        arrays = _arrays_of_start(result)
    if kind == "collective-permute":
        return Collective(kind, sum(arrays), pairs_of(instruction.text))
    groups = groups_of(instruction.text, devices)
    # A reduce-scatter's result is one shard; a tuple of an all-to-all has a shard for each device.
    whole = sum(arrays) * (max(map(len, groups)) if kind == "reduce-scatter" else 1)
    return Collective(kind, whole, groups)


def _arrays_of_start(result: str) -> list[int]:
    """The bytes of the results of an instruction that only starts: the second part of its tuple."""
    parts, depth, begin = [], 0, 1
    for end, letter in enumerate(result[1:], 1):
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0 or (letter == "," and not depth):
            parts.append(result[begin:end])
            begin = end + 1
    return _arrays(parts[1])


def _arrays(result: str) -> list[int]:
    """The bytes of each array of a type."""
    return [array.bytes for array in arrays_of(result)]


def sent_by_kind(found: Sequence[Collective]) -> dict[str, float]:
    """The bytes that one device sends in a call, for each kind that there is."""
    total: collections.Counter[str] = collections.Counter()
    for one in found:
        total[one.kind] += one.sent()  # type: ignore[assignment]
    return {kind: total[kind] for kind in KINDS if kind in total}


def sent_by_axis(
    found: Sequence[Collective], axis_names: Sequence[str], mesh_shape: Sequence[int]
) -> dict[str, float]:
    """The bytes that one device sends in a call along each axis of a mesh, or several: "a, b".

    Groups that are not those of whole axes, and permutes, are under "other".
    """
    ids = np.arange(math.prod(mesh_shape)).reshape(mesh_shape)
    known: dict[frozenset[frozenset[int]], str] = {}
    numbers = range(len(axis_names))
    for axes in (a for n in numbers for a in itertools.combinations(numbers, n + 1)):
        others = [i for i in numbers if i not in axes]
        size = math.prod(mesh_shape[i] for i in axes)
        rows = ids.transpose([*others, *axes]).reshape(-1, size)
        groups = frozenset(frozenset(map(int, row)) for row in rows)
        known.setdefault(groups, ", ".join(axis_names[i] for i in axes))
    total: collections.Counter[str] = collections.Counter()
    for one in found:
        groups = frozenset(map(frozenset, one.groups))
        total[known.get(groups, "other")] += one.sent()  # type: ignore[assignment]
    return dict(total)
