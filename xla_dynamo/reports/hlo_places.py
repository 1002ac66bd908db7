"""The user's lines that each instruction of an optimized HLO module comes from, from its text."""

import dataclasses
import re
from collections.abc import Iterator, Mapping

_NUMBERED = re.compile(r'^(\d+) (?:"(?P<text>.*)"|\{(?P<fields>.*)\})$')
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition)=%?([\w.\-]+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_NODE = re.compile(r'op_name="([^"]*)"')


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line of the user's program.

    Attributes:
        file, line: where it is; "" and 0 of what no line was noted for, as of backwards.
        operators: the graph's names of what is computed there, "mm" say, one behind the other.
    """

    file: str
    line: int
    operators: str = ""


def places_of(hlo: str, lines: Mapping[str, tuple[str, int]]) -> dict[str, tuple[Place, ...]]:
    """For each instruction of a module, by name, the places that it comes from.

    A fusion, or a loop, has those of all instructions inside it. What XLA adds by itself has none.

    Args:
        hlo: the module's text.
        lines: the file and line of each node of the graph, by its name; without any, those that
            the text has, which are those of when it was compiled.
    """
    tables = _tables(hlo)
    own: dict[str, set[Place]] = {}
    called: dict[str, list[str]] = {}
    inside: dict[str, list[str]] = {}
    now = ""
    for line in hlo.splitlines():
        if begins := _COMPUTATION.match(line):
            now = begins[1]
            inside[now] = []
        elif now and (named := _INSTRUCTION.match(line)):
            name = named[1]
            inside[now].append(name)
            called[name] = _CALLED.findall(line)
            place = _of_node(line, lines) if lines else _of_frame(line, tables)
            own[name] = set() if place is None else {place}

    def every(name: str) -> Iterator[Place]:
        yield from own[name]
        for computation in called[name]:
            for inner in inside.get(computation, ()):
                yield from every(inner)

    return {name: tuple(sorted(set(every(name)))) for name in own}


def _tables(hlo: str) -> dict[str, dict[str, str]]:
    """The numbered rows before the computations, by the names of their tables."""
    found: dict[str, dict[str, str]] = {}
    rows: dict[str, str] = {}
    for line in hlo.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            rows = found.setdefault(line, {})
        elif row := _NUMBERED.match(line):
            rows[row[1]] = row["text"] if row["fields"] is None else row["fields"]
        elif _COMPUTATION.match(line):
            break
    return found


def _of_node(instruction: str, lines: Mapping[str, tuple[str, int]]) -> Place | None:
    node = _NODE.search(instruction)
    return None if node is None else Place(*lines.get(node[1], ("", 0)), node[1])


def _of_frame(instruction: str, tables: Mapping[str, Mapping[str, str]]) -> Place | None:
    """The place of an instruction's stack frame; None where that has no file."""
    frame = _FRAME.search(instruction)
    if frame is None:
        return None
    location = _fields(tables.get("StackFrames", {}).get(frame[1], "")).get("file_location_id", "")
    fields = _fields(tables.get("FileLocations", {}).get(location, ""))
    file = tables.get("FileNames", {}).get(fields.get("file_name_id", ""))
    if not file or not fields.get("line"):
        return None
    names = tables.get("FunctionNames", {})
    return Place(file, int(fields["line"]), names.get(fields.get("function_name_id", ""), ""))


def _fields(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)
