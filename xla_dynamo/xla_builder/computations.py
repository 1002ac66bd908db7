"""Computations: functions in StableHLO that no longer change, and their use in other modules."""

import contextvars
import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.errors import StorageError
from xla_dynamo.lowerings.builders.dtypes import tensor_type, torch_dtype
from xla_dynamo.lowerings.builders.functions import (
    bytecode_of,
    main_of,
    merge,
    operations_of,
    rebind,
)
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.runtime import jaxlib_private
from xla_dynamo.xla_builder.shapes import Plain, Shape, torch_dtype_of, type_name_of

# The module that is written, which gets the functions that computations call.
writing: contextvars.ContextVar[ir.Module] = contextvars.ContextVar("writing")


@dataclasses.dataclass(frozen=True)
class Computation:
    """A function of arrays and tuples.

    Attributes:
        name: its name, which the texts have.
        module: its function `main` in MLIR's bytecode; elements of tuples are arguments and
            results of their own.
        parameters: the shape of each parameter.
        result: the shape of the result.
    """

    name: str
    module: bytes
    parameters: tuple[Shape, ...]
    result: Shape

    @functools.cached_property
    def key(self) -> str:
        """A name that other computations do not have, unless they are equal."""
        forms = f"{self.parameters} {self.result}".encode()
        return f"{self.name}-{hashlib.sha256(self.module + forms).hexdigest()[:32]}"

    def hlo(self) -> Any:
        """XLA's form of it."""
        return jaxlib_private.hlo_computation(self.module, returns_tuple=self.result.is_tuple())

    def __repr__(self) -> str:
        return f"<computation {self.name}: {self.parameters} -> {self.result}>"


def plain_leaves(shape: Plain) -> Iterator[Plain]:
    """The shapes of the arrays in a shape, from the left."""
    if isinstance(shape, tuple | list):
        for element in shape:
            yield from plain_leaves(element)
    else:
        yield shape


def mlir_type(shape: Plain) -> ir.Type:
    """The type of an array of a shape, in the current MLIR context."""
    return tensor_type(tuple(shape["sizes"]), torch_dtype_of(shape["type"]))


def shape_of_type(type_: ir.Type) -> Plain:
    """The shape of a type of MLIR."""
    return {
        "type": type_name_of(torch_dtype(type_.element_type)),
        "sizes": tuple(type_.shape),
    }


def leaves(tree: Any) -> list[Value]:
    """The values in a tuple of values and tuples, from the left."""
    if isinstance(tree, tuple):
        return [leaf for element in tree for leaf in leaves(element)]
    return [tree]


def nested(shape: Plain, values: Iterator[Value]) -> Any:
    """Values as a shape nests them."""
    if isinstance(shape, tuple | list):
        return tuple(nested(element, values) for element in shape)
    return next(values)


def inline(computation: Computation, module: ir.Module, values: Sequence[Value]) -> list[Value]:
    """Emit a computation's operations at the insertion point; return the values of its result.

    Args:
        computation: the computation.
        module: the module that is written, which gets the functions that the computation calls.
        values: those of its parameters, one for each array.
    """
    function = merge(module, ir.Module.parse(computation.module), function_name(computation))
    known: dict[Any, Value] = dict(zip(function.entry_block.arguments, values, strict=True))
    results: list[Value] = []
    for op in operations_of(function):
        if op.name == "func.return":
            results = [known[operand] for operand in op.operands]
            break
        copy = op.clone()
        rebind(copy, known)
        known.update(zip(op.results, copy.results, strict=True))
    function.erase()
    return results


def function_name(computation: Computation) -> str:
    """The name of the function that a computation is in another module."""
    return re.sub(r"\W", "_", computation.name) or "computation"


def module_bytes(module: ir.Module) -> bytes:
    """A module of StableHLO in the form that `computation_of_module` takes."""
    return bytecode_of(module)


def computation_of_module(name: str, module: bytes) -> Computation:
    """The computation that is the function `main` of a module of StableHLO."""
    with make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        parsed.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        for op in parsed.body.operations:
            op.attributes["sym_visibility"] = ir.StringAttr.get("public")
        function = main_of(parsed)
        given = [Shape(shape_of_type(type_)) for type_ in function.type.inputs]
        made = [shape_of_type(type_) for type_ in function.type.results]
        result = Shape(made[0] if len(made) == 1 else tuple(made))
        return Computation(name, bytecode_of(parsed), tuple(given), result)


def computation_from_module_proto(name: str, proto: bytes) -> Computation:
    """The computation of a serialized HloModuleProto.

    Raises:
        StorageError: it is none, or StableHLO has not all of its operations.
    """
    try:
        module = jaxlib_private.stablehlo_of_hlo(proto)
    except Exception as error:  # jaxlib raises its own kinds
        raise StorageError(f"no HLO module that can be read: {str(error)[:300]}") from error
    return computation_of_module(name, module)


def get_computation_hlo(computation: Computation) -> str:
    """A computation as the text of HLO."""
    return str(computation.hlo().as_hlo_text())
