"""A builder: a function of StableHLO on its way, and the operations that it has until now."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.interpreters.mlir import make_ir_context

from xla_dynamo.errors import LoweringError
from xla_dynamo.lowerings.builders.functions import bytecode_of, update_type
from xla_dynamo.xla_builder.computations import (
    Computation,
    leaves,
    mlir_type,
    nested,
    plain_leaves,
    shape_of_type,
    writing,
)
from xla_dynamo.xla_builder.shapes import Plain, Shape


class Handle(NamedTuple):
    """What an `Op` holds: a value of a builder, or a tuple of values.

    Attributes:
        builder: the builder.
        value: a value of MLIR, or a tuple of values and tuples.
    """

    builder: "Builder"
    value: Any

    def shape(self) -> Shape:
        """The shape of the value."""
        return Shape(_plain_shape(self.value))


class Builder:
    """A function on its way.

    Attributes:
        name: the name of the function.
        module: the module that has it.
    """

    def __init__(self, name: str) -> None:
        """Begin a function without parameters."""
        self.name = name
        self._context = make_ir_context()
        self._parameters: list[Shape] = []
        with self._context, ir.Location.unknown():
            self.module = ir.Module.create()
            with ir.InsertionPoint(self.module.body):
                self._function = func.FuncOp("main", ([], []), visibility="public")
            self._block = self._function.add_entry_block()

    @contextlib.contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A block whose operations are written at the end of the function.

        Raises:
            LoweringError: MLIR refuses an operation, as one whose operands have other shapes.
        """
        token = writing.set(self.module)
        try:
            with self._context, ir.Location.unknown(), ir.InsertionPoint(self._block):
                yield
        except ir.MLIRError as error:
            told = "; ".join(d.message for d in error.error_diagnostics) or str(error)
            raise LoweringError(f"the builder {self.name!r} cannot write {what}: {told}") from error
        finally:
            writing.reset(token)

    def parameter(self, number: int, shape: Shape) -> Handle:
        """A parameter; they are made in their order.

        Raises:
            ValueError: another parameter comes next.
        """
        if number != len(self._parameters):
            raise ValueError(
                f"parameter {number} of {self.name!r} is asked for, and {len(self._parameters)} "
                "comes next: make parameters in their order"
            )
        with self.writing(f"parameter {number}"):
            types = map(mlir_type, plain_leaves(shape.shape))
            given = [self._block.add_argument(t, ir.Location.unknown()) for t in types]
        self._parameters.append(shape)
        return Handle(self, nested(shape.shape, iter(given)))

    def build(self, name: str, root: Any) -> Computation:
        """The function up to now, which returns a value, under a name."""
        if root is None or not leaves(root):
            raise ValueError(f"the computation {name!r} has no result")
        with self.writing("its result"):
            last = func.ReturnOp(leaves(root))
            update_type(self._function)
            self.module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
            self.module.operation.verify()
            written = bytecode_of(self.module)
            last.operation.erase()
        return Computation(name, written, tuple(self._parameters), Shape(_plain_shape(root)))


def _plain_shape(value: Any) -> Plain:
    if isinstance(value, tuple):
        return tuple(map(_plain_shape, value))
    return shape_of_type(value.type)


_numbers = itertools.count()


def create_builder(name: str) -> Builder:
    """Begin a computation."""
    return Builder(name or f"computation.{next(_numbers)}")


def builder_of(ops: Sequence[Handle], given: Builder | None) -> Builder:
    """The builder of operands, or the one that was given where there are none.

    Raises:
        ValueError: there is neither; the operands are of several builders.
    """
    found = {id(op.builder): op.builder for op in ops}
    if given is not None:
        found.setdefault(id(given), given)
    if len(found) != 1:
        told = "the operands are of several builders" if found else "there is no operand"
        raise ValueError(f"{told}: an operation belongs to one builder, which builder= names")
    return next(iter(found.values()))
