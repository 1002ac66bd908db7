"""`Op`: a value of a builder, whose operators and methods write operations."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.values import Value, defining_operation
from xla_dynamo.xla_builder import elementwise, products, regions, reshaping, windows
from xla_dynamo.xla_builder.builder import Builder, Handle, builder_of, create_builder
from xla_dynamo.xla_builder.computations import Computation, leaves
from xla_dynamo.xla_builder.methods import Methods
from xla_dynamo.xla_builder.shapes import Shape, torch_dtype_of, type_name_of
from xla_dynamo.xla_builder.table import OPERATIONS

_FILL_THE_TABLE = (elementwise, products, regions, reshaping, windows)
Function = Callable[..., Any]


def mkop(name: str, ops: Sequence[Handle], **kwargs: Any) -> "Op":
    """Write an operation.

    Args:
        name: of the operation, as "Add": a key of `OPERATIONS`.
        ops: the operands: what `Op.op` is of each.
        kwargs: what the operation has beside them, and `builder` where there are no operands.

    Raises:
        ValueError: there is no such operation; operands do not fit.
        TypeError: no computation is given where one is wanted.
        LoweringError: MLIR refuses the operation.
    """
    write = OPERATIONS.get(name)
    if write is None:
        raise ValueError(f"there is no operation {name!r}: use one of {', '.join(OPERATIONS)}")
    builder = builder_of(list(ops), kwargs.pop("builder", None))
    given = {k: _values(v) for k, v in kwargs.items() if v is not None}
    for key, value in given.items():
        if key.endswith(("computation", "comparator")) and not isinstance(value, Computation):
            raise TypeError(f"{name} takes a computation as {key}, not {type(value).__name__}")
    with builder.writing(name):
        made = write(*(op.value for op in ops), **given)
        for value in leaves(made):
            _verify(value)
        return Op(Handle(builder, made))


def _verify(value: Value) -> None:
    """Raise MLIRError if MLIR refuses the operation that makes a value, which is then gone."""
    op = defining_operation(value)
    if op is None:
        return
    try:
        op.verify()
    except ir.MLIRError:
        op.erase()
        raise


def _values(argument: Any) -> Any:
    """An argument with values for operands, as of the starts of a slice."""
    if isinstance(argument, Handle):
        return argument.value
    if isinstance(argument, Op):
        return argument.op.value
    if isinstance(argument, list | tuple):
        return type(argument)(map(_values, argument))
    return argument


def mkleaf(name: str, builder: Builder, **kwargs: Any) -> "Op":
    """Write an operation without operands."""
    return mkop(name, (), builder=builder, **kwargs)


def mkparam(builder: Builder, param_no: int, shape: Shape) -> "Op":
    """A parameter of a computation; they are made in their order."""
    return Op(builder.parameter(param_no, shape))


def create_computation(
    name: str, fn: Function, shapes: Sequence[Shape], **kwargs: Any
) -> Computation:
    """The computation of a function of `Op`s, at shapes of its parameters.

    Args:
        name: of the computation.
        fn: takes an `Op` for each shape, and kwargs, and returns an `Op`.
        shapes: of the parameters.
        kwargs: handed to the function.
    """
    builder = create_builder(name)
    parameters = [mkparam(builder, i, shape) for i, shape in enumerate(shapes)]
    return fn(*parameters, **kwargs).build(name)


class Op(Methods):
    """A value of a builder: an array, or a tuple.

    Its operators and methods write operations behind those that the builder has. Operands have one
    element type and one shape; a scalar, and sizes of 1, are broadcast.

    Attributes:
        op: what `mkop` takes.
    """

    def __init__(self, op: Handle) -> None:
        """Take what `mkop` makes."""
        self.op = op

    def shape(self) -> Shape:
        """The shape."""
        return self.op.shape()

    def builder(self) -> Builder:
        """The builder."""
        return self.op.builder

    def build(self, name: str) -> Computation:
        """The computation of the builder's parameters that returns this value."""
        return self.op.builder.build(name, self.op.value)

    def _make(self, name: str, *others: "Op", **kwargs: Any) -> "Op":
        return mkop(name, (self.op, *(other.op for other in others)), **kwargs)

    # --- computations ---------------------------------------------------------------------------

    @classmethod
    def wrap_function(cls, fn: Function) -> Function:
        """A function that takes the elements of a tuple, and may return several `Op`s."""

        def wrapper(*args: "Op", **kwargs: Any) -> "Op":
            if len(args) == 1 and args[0].shape().is_tuple():
                count = args[0].shape().tuple_size()
                args = tuple(args[0].get_tuple_element(i) for i in range(count))
            result = fn(*args, **kwargs)
            return cls.tuple(result) if isinstance(result, tuple | list) else result

        return wrapper

    @classmethod
    def make_computation(
        cls, name: str, computation: Any, args_or_shapes: Sequence[Any], **kwargs: Any
    ) -> Computation:
        """The computation of a function at the shapes of `Op`s, or at shapes; else itself."""
        if not callable(computation):
            return computation
        shapes = [a if isinstance(a, Shape) else a.shape() for a in args_or_shapes]
        return create_computation(name, cls.wrap_function(computation), shapes, **kwargs)

    def conditional(
        self, true_operand: "Op", false_operand: "Op", true_computation: Any, false_computation: Any
    ) -> "Op":
        """The result of one of two computations, each of an operand of its own."""
        return self._make(
            "Conditional",
            true_operand,
            false_operand,
            true_computation=self.make_computation("CondTrue", true_computation, (true_operand,)),
            false_computation=self.make_computation(
                "CondFalse", false_computation, (false_operand,)
            ),
        )

    def mkconditional(
        self, ops: Sequence["Op"], true_fn: Function, false_fn: Function, **kwargs: Any
    ) -> "Op":
        """The result of one of two functions of the same operands."""
        both = Op.tuple(ops)
        return self.conditional(both, both, true_fn, false_fn)

    def while_loop(self, condition_computation: Any, body_computation: Any) -> "Op":
        """Apply a body as long as a condition of the value is true."""
        return self._make(
            "While",
            condition_computation=self.make_computation(
                "Condition", condition_computation, (self,)
            ),
            body_computation=self.make_computation("Body", body_computation, (self,)),
        )

    @classmethod
    def mkwhile(
        cls, ops: Sequence["Op"], condition_fn: Function, body_fn: Function, **kwargs: Any
    ) -> "Op":
        """Apply a body to several values as long as a condition of them is true."""
        return cls.tuple(ops).while_loop(condition_fn, body_fn)

    @classmethod
    def call(cls, computation: Any, ops: Sequence["Op"], builder: Builder | None = None) -> "Op":
        """A computation's result for operands."""
        made = cls.make_computation("Call", computation, ops)
        return mkop("Call", cls._extract_xla_ops(ops), computation=made, builder=builder)

    @classmethod
    def sort(
        cls,
        ops: Sequence["Op"],
        comparator: Any,
        dimension: int | None = None,
        is_stable: bool | None = None,
    ) -> "Op":
        """Operands sorted together; the comparator takes two elements of each in turn."""
        scalars = [op.shape().as_scalar() for op in ops for _ in range(2)]
        return mkop(
            "Sort",
            cls._extract_xla_ops(ops),
            comparator=cls.make_computation("Sort", comparator, scalars),
            dimension=dimension,
            is_stable=is_stable,
        )

    @classmethod
    def map(
        cls,
        ops: Sequence["Op"],
        computation: Any,
        dimensions: Sequence[int],
        static_operands: Sequence["Op"] = (),
        builder: Builder | None = None,
    ) -> "Op":
        """A computation of scalars at each element of operands of one shape.

        Raises:
            NotImplementedError: there are static operands, which XLA has no more.
        """
        if static_operands:
            raise NotImplementedError("XLA's map has no static operands any more: broadcast them")
        scalars = [op.shape().as_scalar() for op in ops]
        return mkop(
            "Map",
            cls._extract_xla_ops(ops),
            computation=cls.make_computation("Map", computation, scalars),
            dimensions=dimensions,
            builder=builder,
        )

    # --- several operands, and none -------------------------------------------------------------

    @classmethod
    def tuple(cls, ops: Sequence["Op"], builder: Builder | None = None) -> "Op":
        """The values together."""
        return mkop("Tuple", cls._extract_xla_ops(ops), builder=builder)

    @classmethod
    def concat_in_dim(
        cls, ops: Sequence["Op"], dimension: int, builder: Builder | None = None
    ) -> "Op":
        """One value behind the other along a dimension."""
        ops_ = cls._extract_xla_ops(ops)
        return mkop("ConcatInDim", ops_, dimension=dimension, builder=builder)

    @classmethod
    def constant(cls, builder: Builder, value: torch.Tensor) -> "Op":
        """A tensor's elements."""
        return mkleaf("Constant", builder, value=value)

    @classmethod
    def scalar(cls, builder: Builder, value: Any, dtype: str | None = None) -> "Op":
        """A number, f32 unless another element type is given."""
        return cls.constant(builder, torch.tensor(value, dtype=cls.to_torch_type(dtype)))

    @classmethod
    def zero(cls, builder: Builder, dtype: str | None = None) -> "Op":
        """The number 0."""
        return cls.scalar(builder, 0, dtype)

    @classmethod
    def one(cls, builder: Builder, dtype: str | None = None) -> "Op":
        """The number 1."""
        return cls.scalar(builder, 1, dtype)

    @classmethod
    def iota(cls, builder: Builder, shape: Shape, iota_dimension: int) -> "Op":
        """Counts 0, 1, 2, ... along a dimension of a shape."""
        return mkleaf("Iota", builder, shape=shape, iota_dimension=iota_dimension)

    def scalar_like(self, value: Any) -> "Op":
        """A number, of this value's shape and element type."""
        shape = self.shape()
        return self.scalar(self.builder(), value, shape.dtype).broadcast(shape.sizes)

    def zeros_like(self) -> "Op":
        """Zeros of this value's shape and element type."""
        return self.scalar_like(0)

    def ones_like(self) -> "Op":
        """Ones of this value's shape and element type."""
        return self.scalar_like(1)

    @classmethod
    def _extract_xla_ops(cls, ops: Sequence["Op"]) -> list[Handle]:
        return [op.op for op in ops]

    @classmethod
    def to_torch_type(cls, dtype: str | None) -> torch.dtype:
        """The torch dtype of one of XLA's names: float32 for None."""
        return torch_dtype_of(dtype) if dtype else torch.float32

    @classmethod
    def from_torch_type(cls, dtype: torch.dtype) -> str:
        """XLA's name of a torch dtype."""
        return type_name_of(dtype)
