"""Write programs to files and read them: bindings as JSON, modules as StableHLO artifacts.

A file is a zip archive: `program.json`, `module.mlir` and `frozen.mlir` in StableHLO's portable
form, and each tensor of the graph's own in `constants/`. Reading a file runs no code from it.
"""

import dataclasses
import json
import math
import operator
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.errors import StorageError
from xla_dynamo.graphs.call_sizes import CallSizes, TensorSizes
from xla_dynamo.graphs.output_views import ViewStep
from xla_dynamo.kernels.libraries import can_execute_packed, libraries_of
from xla_dynamo.lowerings.bounded.extents import Extent
from xla_dynamo.lowerings.builders.functions import bytecode_of
from xla_dynamo.lowerings.kernels import KERNELS, PackedKernel
from xla_dynamo.lowerings.passes.pack_weights import Packed
from xla_dynamo.programs.checks import check_program
from xla_dynamo.programs.layouts import InputLayout, Restride
from xla_dynamo.programs.lower_bounded import (
    BoundedProgram,
    DynamicInput,
    DynamicResult,
    DynamicView,
)
from xla_dynamo.programs.program import (
    Constant,
    Donated,
    Effect,
    Frozen,
    FrozenValue,
    Handles,
    Input,
    Mutation,
    NegativeZero,
    Output,
    Parameter,
    Program,
    Result,
    Seed,
    SymbolValues,
    Whole,
)
from xla_dynamo.runtime.jaxlib_private import initialize_lapack
from xla_dynamo.runtime.saved_executables import digest_of_module
from xla_dynamo.torch_private import OpOverload

FORMAT = 2


@dataclasses.dataclass(frozen=True, slots=True)
class StoredConstant:
    """A `Constant` whose elements are in `constants/` of the archive, under a number."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_literal: bool


_RECORDS = {
    kind.__name__: kind
    for kind in (
        Program,
        Input,
        Parameter,
        Donated,
        SymbolValues,
        StoredConstant,
        Seed,
        FrozenValue,
        Handles,
        NegativeZero,
        Result,
        InputLayout,
        Output,
        ViewStep,
        Mutation,
        Effect,
        Frozen,
        Packed,
        Restride,
        Whole,
        BoundedProgram,
        DynamicInput,
        DynamicResult,
        DynamicView,
        TensorSizes,
        CallSizes,
        Extent,
    )
}
# Values that torch has a name for: torch.float32, torch.strided, torch.channels_last.
_NAMED = torch.dtype | torch.layout | torch.memory_format


def write_program(program: Program | BoundedProgram, file: str | BinaryIO) -> None:
    """Write a program to a file, a bounded one with what its calls need to know.

    A tensor that the user's code holds is written as it is now: the program that is read has a copy
    of it.

    Raises:
        StorageError: the program has a value that no file can hold, such as an object of Python.
    """
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        if isinstance(program, BoundedProgram):
            calls = dataclasses.replace(program, program=None)  # type: ignore[arg-type]
            archive.writestr("bounded.json", json.dumps(encoded(calls)))
            program = program.program
        frozen = program.frozen
        if frozen is not None:
            frozen = _written_module(frozen, "frozen.mlir", archive)
        slots = tuple(
            _written_constant(slot, number, archive) if isinstance(slot, Constant) else slot
            for number, slot in enumerate(program.arguments)
        )
        bound = _written_module(program, "module.mlir", archive)
        whole = None if program.whole is None else dataclasses.replace(program.whole, module=None)
        bound = dataclasses.replace(bound, arguments=slots, frozen=frozen, whole=whole)  # type: ignore[arg-type]
        described = {"format": FORMAT, "program": encoded(bound)}
        archive.writestr("program.json", json.dumps(described))


def _written_module(record: Any, name: str, archive: zipfile.ZipFile) -> Any:
    """Write the module of a program, or of a frozen one; returns the record without it."""
    archive.writestr(name, _artifact(record.module))
    digest = record.written_as or digest_of_module(record.module)
    return dataclasses.replace(record, module=None, written_as=digest)


def _written_constant(constant: Constant, number: int, archive: zipfile.ZipFile) -> StoredConstant:
    tensor = constant.tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    archive.writestr(f"constants/{number}", data, zipfile.ZIP_STORED)
    return StoredConstant(number, tuple(tensor.shape), tensor.dtype, constant.is_literal)


def read_program(file: str | BinaryIO) -> Program:
    """Read a program that `write_program` wrote.

    Raises:
        StorageError: the file holds no such program, or one of another format.
    """
    program = read_any_program(file)
    return program.program if isinstance(program, BoundedProgram) else program


def read_any_program(file: str | BinaryIO) -> Program | BoundedProgram:
    """Read a program, or a bounded one, as it was written.

    Raises:
        StorageError: the file holds no such program, or one of another format.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            program = _read(archive)
            if "bounded.json" not in archive.namelist():
                return program
            calls = decoded(json.loads(archive.read("bounded.json")))
            return dataclasses.replace(calls, program=program)
    except StorageError:
        raise
    except Exception as error:  # whatever a damaged file may cause in what reads it
        raise StorageError(
            f"{file} holds no program that can be read ({type(error).__name__}: {error}): compile "
            "and write it again"
        ) from error


def _read(archive: zipfile.ZipFile) -> Program:
    described = json.loads(archive.read("program.json"))
    if described["format"] != FORMAT:
        raise StorageError(
            f"{archive.filename or 'the file'} holds a program of format {described['format']!r}, "
            f"and this version of xla_dynamo reads format {FORMAT}: compile and write it again"
        )
    bound = decoded(described["program"])
    slots = tuple(
        _read_constant(slot, archive) if isinstance(slot, StoredConstant) else slot
        for slot in bound.arguments
    )
    frozen = bound.frozen
    if frozen is not None:
        frozen = dataclasses.replace(frozen, module=_module(archive.read("frozen.mlir")))
    module = _module(archive.read("module.mlir"))
    program = dataclasses.replace(bound, module=module, arguments=slots, frozen=frozen)
    check_program(program)
    if program.calls_torch:
        libraries_of("cpu")  # which registers what the module calls
    if program.of(Handles) and not can_execute_packed():
        raise StorageError("the program has packed weights, which nothing here can execute")
    return program


def _artifact(module: ir.Module) -> bytes:
    # Of a copy, since the operations become those of another dialect.
    with module.context:
        copy = ir.Module.parse(bytecode_of(module))
    # Other dialects: CHLO, whose operations PJRT plugins decompose.
    return hlo.serialize_portable_artifact(copy, hlo.get_current_version(), True)


def _module(artifact: bytes) -> ir.Module:
    if b"lapack" in artifact:
        initialize_lapack()
    with make_ir_context() as context:
        return hlo.deserialize_portable_artifact(context, artifact)


def _read_constant(stored: StoredConstant, archive: zipfile.ZipFile) -> Constant:
    data = bytearray(archive.read(f"constants/{stored.number}"))
    return Constant(_tensor(data, stored.shape, stored.dtype), stored.is_literal)


def _tensor(data: bytearray, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise ValueError(f"a constant of {wanted} bytes has {len(data)}")
    return (
        torch.frombuffer(data, dtype=dtype).reshape(shape)
        if data
        else torch.empty(shape, dtype=dtype)
    )


def encoded(value: Any) -> Any:
    """A value as JSON has it; what JSON lacks is an object of one key, which says the kind."""
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) is int:
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if _RECORDS.get(type(value).__name__) is type(value):
        fields = dataclasses.fields(value)
        return {type(value).__name__: {f.name: encoded(getattr(value, f.name)) for f in fields}}
    if isinstance(value, PackedKernel):
        return {"kernel": [value.name, value.text()]}
    if isinstance(value, tuple):
        return {"tuple": [encoded(v) for v in value]}
    if isinstance(value, list):
        return [encoded(v) for v in value]
    if isinstance(value, Mapping):
        return {"dict": [[encoded(k), encoded(v)] for k, v in value.items()]}
    if isinstance(value, _NAMED):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, OpOverload):
        return {"op": str(value)}
    if value is operator.getitem:
        return {"op": "getitem"}
    raise StorageError(
        f"a program with {type(value).__name__} {value!r} among its results or effects cannot be "
        "written: it belongs to this process"
    )


def decoded(value: Any) -> Any:
    """The value that `encoded` made JSON of."""
    if isinstance(value, list):
        return [decoded(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind in _RECORDS:
        return _RECORDS[kind](**{name: decoded(v) for name, v in content.items()})
    return _DECODERS[kind](content)


def _named(name: str) -> Any:
    value = getattr(torch, name)
    if not isinstance(value, _NAMED):
        raise ValueError(f"torch.{name} is no dtype, layout or memory format")
    return value


def _operator(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    namespace, packet, overload = name.split(".")
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(op, OpOverload):
        raise ValueError(f"torch.ops.{name} is no operator")
    return op


def _kernel(parts: list[str]) -> PackedKernel:
    name, text = parts
    kernel = KERNELS[name]
    if not issubclass(kernel, PackedKernel):
        raise ValueError(f"{name} is no kernel with packed weights")
    return kernel.read(text)


_DECODERS = {
    "kernel": _kernel,
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "tuple": lambda values: tuple(map(decoded, values)),
    "dict": lambda pairs: {decoded(k): decoded(v) for k, v in pairs},
    "torch": _named,
    "device": torch.device,
    "op": _operator,
}
