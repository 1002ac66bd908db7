"""The instructions of an optimized HLO module, computation by computation, read from its text."""

import dataclasses
import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_SHAPE = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\]")
_OPCODE = re.compile(r"([\w\-]+)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_NODE = re.compile(r'op_name="([^"]*)"')
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_BITS = re.compile(r"\d+")
_ALIASES = re.compile(r"\{(\d*)\}: \((\d+), \{\d*\}")


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name, opcode: as in HLO: "add_fusion.1", "fusion".
        shapes: the dtype and the sizes of each array that it returns.
        operands: the names of the instructions that it reads.
        called: the names of the computations that it runs.
        node: the name of the graph's node that it comes from; "" if it has none.
        text: the whole line.
        is_root: whether its value is that of its computation.
    """

    name: str
    opcode: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    node: str
    text: str
    is_root: bool

    @property
    def bytes(self) -> int:
        """The bytes of what it returns."""
        return sum(math.ceil(math.prod(size) * _bits(dtype) / 8) for dtype, size in self.shapes)

    @property
    def elements(self) -> int:
        """How many elements the first array has that it returns."""
        return math.prod(self.shapes[0][1]) if self.shapes else 0

    @property
    def trips(self) -> int:
        """How often a loop runs, if XLA knows; else 1."""
        found = _TRIPS.search(self.text)
        return int(found[1]) if found else 1

    @property
    def shown(self) -> str:
        """What it returns, as in "f32[64,1024]"."""
        return ", ".join(f"{dtype}[{','.join(map(str, size))}]" for dtype, size in self.shapes)


@dataclasses.dataclass(frozen=True, slots=True)
class HloModule:
    """A module.

    Attributes:
        computations: the instructions of each computation, by name, in the order in which they run.
        entry: the name of the computation that a call runs.
        aliases: for results, by number, the argument whose memory they are written into.
    """

    computations: dict[str, list[Instruction]]
    entry: str
    aliases: dict[int, int]

    def every(self) -> Iterator[Instruction]:
        """All instructions."""
        for instructions in self.computations.values():
            yield from instructions


def read_module(text: str) -> HloModule:
    """The first module in a text of HLO."""
    computations: dict[str, list[Instruction]] = {}
    entry, now, aliases = "", "", {}
    for line in text.splitlines():
        if line.startswith("HloModule "):
            if computations:
                break
            header = line.partition("input_output_alias=")[2].partition("entry_computation")[0]
            aliases = {int(r or 0): int(a) for r, a in _ALIASES.findall(header)}
        elif begins := _COMPUTATION.match(line):
            now = begins[2]
            computations[now] = []
            entry = now if begins[1] else entry
        elif now and (found := _INSTRUCTION.match(line)):
            computations[now].append(_instruction(found[2], found[3], bool(found[1])))
    return HloModule(computations, entry, aliases)


def _instruction(name: str, rest: str, is_root: bool) -> Instruction:
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shapes = tuple(
        (dtype, tuple(int(n.lstrip("<=")) for n in sizes.split(",") if n))
        for dtype, sizes in _SHAPE.findall(rest[:end])
    )
    opcode = _OPCODE.match(rest, end + 1)
    operands, called = "", tuple(_CALLED.findall(rest))
    if opcode:
        operands = rest[opcode.end() : _closing(rest, opcode.end() - 1)]
    if branches := _BRANCHES.search(rest):
        called += tuple(n.strip().lstrip("%") for n in branches[1].split(","))
    node = _NODE.search(rest)
    return Instruction(
        name,
        opcode[1] if opcode else "",
        shapes,
        tuple(_OPERAND.findall(operands)),
        called,
        node[1] if node else "",
        rest,
        is_root,
    )


def _closing(text: str, start: int) -> int:
    """The index of the bracket that closes the one at `start`; the end if none does."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return len(text) - 1


def _bits(dtype: str) -> int:
    if dtype == "pred":
        return 8
    number = _BITS.search(dtype)  # "f8e4m3fn" has 8; a token has none
    return int(number[0]) if number else 0
