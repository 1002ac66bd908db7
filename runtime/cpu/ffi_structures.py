"""The structures of XLA's foreign function interface that handlers read and write.

They are declared in xla/ffi/api/c_api.h, which jaxlib includes, and here once more, for ctypes.
`script_runner` takes the offsets of their fields from here.
"""

import ctypes
from typing import Any

Pointer, Size, Number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64


def _struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    """A structure of the API: all begin with their size and a pointer to extensions."""
    first = {"struct_size": Size, "extension_start": Pointer}
    return type(name, (ctypes.Structure,), {"_fields_": [*{**first, **fields}.items()]})


class Span(ctypes.Structure):
    """`XLA_FFI_ByteSpan`: a text."""

    _fields_ = [("ptr", Pointer), ("len", Size)]


class Array(ctypes.Structure):
    """`XLA_FFI_Array`: an attribute that is an array."""

    _fields_ = [("dtype", ctypes.c_int), ("size", Size), ("data", Pointer)]


Buffer: Any = _struct("Buffer", dtype=ctypes.c_int, data=Pointer, rank=Number, dims=Pointer)
Values: Any = _struct(
    "Values", size=Number, types=Pointer, values=ctypes.POINTER(ctypes.POINTER(Buffer))
)
Attributes: Any = _struct(
    "Attributes",
    size=Number,
    types=Pointer,
    names=Pointer,
    values=ctypes.POINTER(ctypes.POINTER(Span)),
)
Frame: Any = _struct(
    "Frame",
    api=Pointer,
    context=Pointer,
    stage=ctypes.c_int,
    operands=Values,
    results=Values,
    attributes=Attributes,
)
# The stage in which a handler is to compute, and the extension that asks for its version.
EXECUTE, METADATA = 3, 1

Version: Any = _struct("Version", major=ctypes.c_int, minor=ctypes.c_int)


class Metadata(ctypes.Structure):
    """`XLA_FFI_Metadata`: what a handler says about itself."""

    _fields_ = [
        ("struct_size", Size),
        ("version", Version),
        ("traits", ctypes.c_uint32),
        ("state_type_id", Number),
    ]


class MetadataExtension(ctypes.Structure):
    """`XLA_FFI_Metadata_Extension`: the question for it."""

    _fields_ = [
        ("struct_size", Size),
        ("type", ctypes.c_int),
        ("next", Pointer),
        ("metadata", ctypes.POINTER(Metadata)),
    ]


# The functions of the API that are called here, by their numbers; each takes one structure.
ERROR_CREATE, ERROR_DESTROY, SCHEDULE, NUMBER_OF_THREADS = 0, 2, 11, 12
Api: Any = _struct(
    "Api", version=Version, internal=Pointer, functions=Pointer * (NUMBER_OF_THREADS + 1)
)
ErrorArguments: Any = _struct("ErrorArguments", message=ctypes.c_char_p, code=ctypes.c_int)
DestroyArguments: Any = _struct("DestroyArguments", error=Pointer)
ScheduleArguments: Any = _struct("ScheduleArguments", context=Pointer, task=Pointer, data=Pointer)
ThreadsArguments: Any = _struct("ThreadsArguments", context=Pointer, count=ctypes.POINTER(Number))
# The bytes of an element, by the numbers of dtypes (XLA_FFI_DataType); those of less are left out.
ITEM_SIZES = {
    **dict.fromkeys((1, 2, 6, 19, 20, 23, 24, 25, 28, 29, 33), 1),
    **dict.fromkeys((3, 7, 10, 16), 2),
    **dict.fromkeys((4, 8, 11), 4),
    **dict.fromkeys((5, 9, 12, 15), 8),
    18: 16,
}
# Codes of errors (XLA_FFI_Error_Code).
RESOURCE_EXHAUSTED, INTERNAL = 8, 13
