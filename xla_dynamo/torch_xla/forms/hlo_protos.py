"""Serialized HloModuleProtos as JSON and as text, by the fields of XLA's hlo.proto that are here.

The fields that tools read: names, shapes, operands, parameters, metadata and stack frames. Others,
as literals and windows, are left out; the serialized form has them.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple


class _Field(NamedTuple):
    """A field of a message.

    Attributes:
        name: its name.
        kind: "text", "int32", "int64", "bool" or "type", or the name of a message.
        repeated: whether there may be several values.
    """

    name: str
    kind: str
    repeated: bool = False


_MESSAGES: dict[str, dict[int, _Field]] = {
    "HloModuleProto": {
        1: _Field("name", "text"),
        2: _Field("entry_computation_name", "text"),
        3: _Field("computations", "HloComputationProto", True),
        4: _Field("host_program_shape", "ProgramShapeProto"),
        5: _Field("id", "int64"),
        6: _Field("entry_computation_id", "int64"),
        17: _Field("stack_frame_index", "StackFrameIndexProto"),
    },
    "HloComputationProto": {
        1: _Field("name", "text"),
        2: _Field("instructions", "HloInstructionProto", True),
        4: _Field("program_shape", "ProgramShapeProto"),
        5: _Field("id", "int64"),
        6: _Field("root_id", "int64"),
    },
    "HloInstructionProto": {
        1: _Field("name", "text"),
        2: _Field("opcode", "text"),
        3: _Field("shape", "ShapeProto"),
        7: _Field("metadata", "OpMetadata"),
        9: _Field("parameter_number", "int64"),
        13: _Field("tuple_index", "int64"),
        14: _Field("dimensions", "int64", True),
        28: _Field("custom_call_target", "text"),
        35: _Field("id", "int64"),
        36: _Field("operand_ids", "int64", True),
        38: _Field("called_computation_ids", "int64", True),
        63: _Field("comparison_direction", "text"),
    },
    "ProgramShapeProto": {
        1: _Field("parameters", "ShapeProto", True),
        2: _Field("result", "ShapeProto"),
        3: _Field("parameter_names", "text", True),
    },
    "ShapeProto": {
        2: _Field("element_type", "type"),
        3: _Field("dimensions", "int64", True),
        4: _Field("tuple_shapes", "ShapeProto", True),
        5: _Field("layout", "LayoutProto"),
        6: _Field("is_dynamic_dimension", "bool", True),
    },
    "LayoutProto": {1: _Field("minor_to_major", "int64", True)},
    "OpMetadata": {
        1: _Field("op_type", "text"),
        2: _Field("op_name", "text"),
        3: _Field("source_file", "text"),
        4: _Field("source_line", "int32"),
        15: _Field("stack_frame_id", "int32"),
    },
    "StackFrameIndexProto": {
        1: _Field("file_names", "text", True),
        2: _Field("function_names", "text", True),
        3: _Field("file_locations", "FileLocation", True),
        4: _Field("stack_frames", "StackFrame", True),
    },
    "FileLocation": {
        1: _Field("file_name_id", "int32"),
        2: _Field("function_name_id", "int32"),
        3: _Field("line", "int32"),
        4: _Field("column", "int32"),
    },
    "StackFrame": {
        1: _Field("file_location_id", "int32"),
        2: _Field("parent_frame_id", "int32"),
    },
}
_TYPES = (
    "PRIMITIVE_TYPE_INVALID", "PRED", "S8", "S16", "S32", "S64", "U8",
    "U16", "U32", "U64", "F16", "F32", "F64", "TUPLE",
    "OPAQUE_TYPE", "C64", "BF16", "TOKEN", "C128", "F8E5M2", "F8E4M3FN",
)  # fmt: skip


def module_as_json(proto: bytes) -> str:
    """A serialized HloModuleProto as JSON, in the form that protobuf gives it."""
    return json.dumps(_as_json(_parsed(proto, "HloModuleProto")), indent=1)


def module_as_text(proto: bytes) -> str:
    """A serialized HloModuleProto in protobuf's text format."""
    return "\n".join(_as_text(_parsed(proto, "HloModuleProto"))) + "\n"


class _Message(dict[_Field, Any]):
    """The values of the fields of a message, a list for a repeated one."""


def _parsed(data: bytes, kind: str) -> _Message:
    found = _Message()
    known = _MESSAGES[kind]
    for number, value in _fields(data):
        field = known.get(number)
        if field is None:
            continue
        for one in _values(field, value):
            if field.repeated:
                found.setdefault(field, []).append(one)
            else:
                found[field] = one
    return found


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The number and the raw value of each field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7, 0)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if key & 7 == 2:
            size, at = _varint(data, at)
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at


def _values(field: _Field, value: int | bytes) -> Iterator[Any]:
    """The values that a raw one has: several where numbers are packed."""
    if isinstance(value, int):
        yield _number(field, value)
    elif field.kind in _MESSAGES:
        yield _parsed(value, field.kind)
    elif field.kind == "text":
        yield value.decode(errors="replace")
    else:
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            yield _number(field, one)


def _number(field: _Field, value: int) -> Any:
    if field.kind == "bool":
        return bool(value)
    if field.kind == "type":
        return _TYPES[value] if value < len(_TYPES) else str(value)
    return value - (1 << 64) if value >> 63 else value


def _as_json(value: Any) -> Any:
    if not isinstance(value, _Message):
        return value
    made = {}
    for field, given in value.items():
        first, *others = field.name.split("_")
        name = first + "".join(map(str.capitalize, others))
        of_field = given if field.repeated else [given]
        # JSON has no 64-bit integers, so protobuf writes texts.
        told = [str(v) if field.kind == "int64" else _as_json(v) for v in of_field]
        made[name] = told if field.repeated else told[0]
    return made


def _as_text(message: _Message, indent: str = "") -> Iterator[str]:
    for field, given in message.items():
        for value in given if field.repeated else [given]:
            if isinstance(value, _Message):
                yield f"{indent}{field.name} {{"
                yield from _as_text(value, indent + "  ")
                yield f"{indent}}}"
            elif field.kind == "text":
                yield f"{indent}{field.name}: {json.dumps(value)}"
            else:
                told = str(value).lower() if isinstance(value, bool) else value
                yield f"{indent}{field.name}: {told}"
