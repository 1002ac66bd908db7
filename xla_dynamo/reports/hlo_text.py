"""The text of an optimized HLO module to its computations and instructions.

The grammar is that of `HloModule::ToString` (openxla/xla, `hlo/ir/hlo_module.cc`).
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator

_COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = ")
_OPCODE = re.compile(r"\s*(?P<opcode>[a-z][a-z0-9\-]*)\(")
_BRACKET = re.compile(r"[()]")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"(?:to_apply|calls|body|condition|branch_computations|called_computations"
    r"|true_computation|false_computation)="
    r"(?:\{([^}]*)\}|%?([\w.\-]+))"
)
_ARRAY = re.compile(r"\b(?P<type>[a-z]+\d*(?:e\d+m\d+\w*)?)\[(?P<sizes>[\d,<=]*)\]")
_NUMBERED = re.compile(r'^(\d+) (?:"(?P<text>.*)"|\{(?P<fields>.*)\})$')
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_BITS = re.compile(r"(?:bf|[sufc])(\d+)")
_ALIASES = re.compile(r"\{(\d*)\}: \((\d+), \{\d*\}")


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """A type of arrays.

    Attributes:
        dtype: HLO's name of the element type, as "f32".
        sizes: of the dimensions; of a bounded one, the bound.
    """

    dtype: str
    sizes: tuple[int, ...]

    @property
    def elements(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """The bytes of all elements.

        Raises:
            ValueError: the element type is not known.
        """
        return -(-bits_of(self.dtype) * self.elements // 8)


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
        name: its own.
        opcode: what it does, as "dot".
        result: the text of its result's type.
        operands: the names of its operands.
        text: all behind the type of the result: opcode, operands and attributes.
        called: the names of the computations that it calls.
        is_root: whether its value is that of its computation.
    """

    name: str
    opcode: str
    result: str
    operands: tuple[str, ...]
    text: str
    called: tuple[str, ...]
    is_root: bool = False

    def attribute(self, name: str) -> str:
        """An attribute's text, without the quotes or braces; "" where there is none."""
        found = re.search(rf'\b{name} ?= ?(?:"([^"]*)"|\{{([^{{}}]*)\}}|([^\s,}}]+))', self.text)
        return next((one for one in found.groups() if one is not None), "") if found else ""

    @property
    def arrays(self) -> list[Array]:
        """The arrays of the result: one, or those of a tuple."""
        return arrays_of(self.result)

    @property
    def node(self) -> str:
        """The name of the graph's node that it comes from; "" if it has none."""
        return self.attribute("op_name")

    @property
    def bytes(self) -> int:
        """The bytes of the result."""
        return sum(array.bytes for array in self.arrays)

    @property
    def elements(self) -> int:
        """The elements of the first array of the result."""
        return next((array.elements for array in self.arrays), 0)

    @property
    def shown(self) -> str:
        """The result, as in "f32[64,1024]"."""
        return ", ".join(f"{a.dtype}[{','.join(map(str, a.sizes))}]" for a in self.arrays)

    @property
    def trip_count(self) -> int | None:
        """How often the body of a loop runs, if XLA knows."""
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', self.text)
        return int(known[1]) if known else None


@dataclasses.dataclass(frozen=True)
class Module:
    """A module.

    Attributes:
        name: its own.
        entry: the name of the computation that a call runs.
        computations: the instructions of each computation, by name.
        frames: by the number of a stack frame, the file, line and function that it is in.
        partitions: how many devices the module is partitioned over.
        aliases: for results, by number, the argument whose memory they are written into.
    """

    name: str
    entry: str
    computations: dict[str, list[Instruction]]
    frames: dict[str, tuple[str, int, str]]
    partitions: int
    aliases: dict[int, int]

    @functools.cached_property
    def instructions(self) -> dict[str, Instruction]:
        """All instructions by name, which is unique in a module."""
        return {i.name: i for body in self.computations.values() for i in body}

    def inside(self, instruction: Instruction) -> Iterator[Instruction]:
        """The instructions of the computations that one calls, and of those that these call."""
        for name in instruction.called:
            for inner in self.computations.get(name, ()):
                yield inner
                yield from self.inside(inner)


def parse(hlo: str) -> Module:
    """Read the text of a module, or of several, of which the first has the entry."""
    entry, now = "", ""
    computations: dict[str, list[Instruction]] = {}
    for line in hlo.splitlines():
        if begins := _COMPUTATION.match(line):
            now = begins["name"]
            entry = now if begins["entry"] and not entry else entry
            computations[now] = []
        elif now and (named := _INSTRUCTION.match(line)):
            result, text = type_and_rest(line[named.end() :])
            known = _OPCODE.match(text)
            opcode = known["opcode"] if known else ""
            given = _in_brackets(text, known.end()) if known else ""
            operands = () if opcode == "constant" else tuple(_OPERAND.findall(given))
            computations[now].append(
                Instruction(
                    named["name"],
                    opcode,
                    result,
                    operands,
                    text,
                    _called(text),
                    bool(named["root"]),
                )
            )
    head = hlo.partition("\n")[0]
    count = re.search(r"num_partitions=(\d+)", head)
    written = head.partition("input_output_alias=")[2].partition("entry_computation")[0]
    aliases = {int(r or 0): int(a) for r, a in _ALIASES.findall(written)}
    name = re.match(r"HloModule ([^\s,]+)", head)
    return Module(
        name[1] if name else "",
        entry,
        computations,
        _frames(hlo),
        int(count[1]) if count else 1,
        aliases,
    )


def bits_of(dtype: str) -> int:
    """The bits of an element.

    Raises:
        ValueError: the element type is not known.
    """
    if dtype in ("pred", "token"):
        return 8 if dtype == "pred" else 0
    found = _BITS.match(dtype)  # "f8e4m3fn" has 8
    if found is None:
        raise ValueError(f"an element type whose size is not known: {dtype}")
    return int(found[1])


@functools.lru_cache(maxsize=4096)
def _arrays(text: str) -> tuple[Array, ...]:
    return tuple(
        Array(a["type"], tuple(int(n.removeprefix("<=")) for n in a["sizes"].split(",") if n))
        for a in _ARRAY.finditer(text)
    )


def arrays_of(text: str) -> list[Array]:
    """The arrays of a type."""
    return list(_arrays(text))


def type_and_rest(text: str) -> tuple[str, str]:
    """An instruction behind its name: the type of its result, and what follows.

    Raises:
        ValueError: a tuple type does not end.
    """
    if not text.startswith("("):
        kind, _, rest = text.partition(" ")
        return kind, rest
    end = len(_in_brackets(text, 1)) + 2
    if end > len(text):
        raise ValueError(f"a tuple type without an end: {text:.200}")
    return text[:end], text[end:]


def _in_brackets(text: str, begin: int) -> str:
    """What stands before the bracket that closes the one in front of `begin`."""
    depth = 1
    for found in _BRACKET.finditer(text, begin):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return text[begin : found.start()]
    return text[begin:]


def _called(text: str) -> tuple[str, ...]:
    """The computations that an instruction calls, alone or in a list."""
    given = [several or one for several, one in _CALLED.findall(text)]
    names = (name for names in given for name in re.split(r"[,\s]+", names))
    return tuple(name.lstrip("%") for name in names if name)


def _frames(hlo: str) -> dict[str, tuple[str, int, str]]:
    """The places of the stack frames, from the numbered rows before the computations."""
    tables: dict[str, dict[str, str]] = {name: {} for name in _TABLES}
    rows: dict[str, str] | None = None
    for line in hlo.splitlines():
        if line in tables:
            rows = tables[line]
        elif rows is not None and (row := _NUMBERED.match(line)):
            rows[row[1]] = row["text"] if row["fields"] is None else row["fields"]
        elif _COMPUTATION.match(line):
            break
    found = {}
    for number, frame in tables["StackFrames"].items():
        place = _fields(frame).get("file_location_id", "")
        location = _fields(tables["FileLocations"].get(place, ""))
        file = tables["FileNames"].get(location.get("file_name_id", ""))
        function = tables["FunctionNames"].get(location.get("function_name_id", ""), "")
        if file and location.get("line"):
            found[number] = (file, int(location["line"]), function)
    return found


def _fields(text: str) -> dict[str, str]:
    return {key: value for key, _, value in (pair.partition("=") for pair in text.split())}
