"""What follows a product or convolution that oneDNN computes on the way.

That is an activation, a sum, and before them a factor and a term for each channel, as a batch norm
in inference has. Activations are a table of expressions as rules write them, and of oneDNN's
algorithms. Rules compute those of bfloat16 and float16 in float32, between two conversions, and so
does oneDNN.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.shapes import transpose
from xla_dynamo.lowerings.builders.specifications import Specification
from xla_dynamo.lowerings.builders.values import Value, defining_name, dtype_of, number_of, shape_of

# An expression: X, a number, a name for any number, or an operation on expressions. A comparison
# has its direction behind a point.
Expression: TypeAlias = Any
X = object()
_CUBIC = ("multiply", X, ("multiply", X, X))
_TO_SIX = ("multiply", X, ("minimum", ("maximum", ("add", X, 3.0), 0.0), 6.0))


class Activation(NamedTuple):
    """An activation that oneDNN has.

    Attributes:
        expression: how rules write it; names stand for its first parameters, in their order.
        algorithm: the number of the algorithm (oneapi/dnnl/dnnl_types.h).
        parameters: both of its parameters, where the expression has no name for them.
    """

    expression: Expression
    algorithm: int
    parameters: tuple[float, float] = (0.0, 0.0)


_ERF = ("add", ("erf", ("multiply", X, math.sqrt(0.5))), 1.0)
_INSIDE = ("multiply", ("add", X, ("multiply", _CUBIC, 0.044715)), math.sqrt(2 / math.pi))
_HALF = ("multiply", X, 0.5)
# A quotient by a number that keeps NaN as it is. oneDNN divides first, and does not overflow from
# 5.7e37 on.
_SIXTH = ("divide", _TO_SIX, ("select", ("compare.NE", _TO_SIX, _TO_SIX), _TO_SIX, 6.0))
_LEAKY = ("select", ("compare.GT", X, 0.0), X, ("multiply", X, "alpha"))
ACTIVATIONS = {
    "clamp": Activation(("minimum", ("maximum", X, "low"), "high"), 0x2E),
    "gelu_erf": Activation(("multiply", _HALF, _ERF), 0x31),
    "gelu_tanh": Activation(("multiply", _HALF, ("add", ("tanh", _INSIDE), 1.0)), 0x2B),
    "hardswish": Activation(_SIXTH, 0x34, (1 / 6, 0.5)),
    "leaky_relu": Activation(_LEAKY, 0x20),
    "relu": Activation(("select", ("compare.LE", X, 0.0), 0.0, X), 0x20),
    "swish": Activation(("multiply", X, ("logistic", X)), 0x2C, (1.0, 0.0)),
}
# What each channel is multiplied by, and what is added to it: a batch norm.
CHANNELWISE = ("scale", "shift")
# What has an operand of its own: the sum has one of the result's shape and dtype, the others a
# vector in float32.
WITH_OPERAND = (*CHANNELWISE, "add")
# They come last: where there is NaN they are computed by themselves.
LAST = ("clamp", "relu")
_COMMUTES = {"add", "multiply", "minimum", "maximum"}
# Operations that an activation has at most, with some to spare.
_MOST_OPERATIONS = 16


@dataclasses.dataclass(frozen=True)
class PostOp(Specification):
    """What is computed of a value: an activation, with its numbers, or one of `WITH_OPERAND`."""

    name: str
    numbers: tuple[float, ...] = ()

    def check(self) -> None:
        """It is one of the table."""
        wanted = {"clamp": 2, "leaky_relu": 1}.get(self.name, 0)
        if self.name not in (*ACTIVATIONS, *WITH_OPERAND) or len(self.numbers) != wanted:
            self.refuse(f"there is no {self.name} of {self.numbers}")
        if self.numbers != tuple(sorted(self.numbers)):
            self.refuse("oneDNN takes no clamp with its bounds the wrong way round")


class Epilogue(NamedTuple):
    """What follows a value.

    Attributes:
        result: the value that takes its place.
        then: what is computed of it, one after another.
        operands: one for each of `then` that has one.
    """

    result: Value
    then: tuple[PostOp, ...] = ()
    operands: tuple[Value, ...] = ()


def epilogue_of(x: Value, *, has_channels: bool = False) -> Epilogue:
    """All that follows a value and may be computed with it: activations, and a sum among them.

    If it `has_channels`, its last dimension, first a factor and a term for each.
    """
    found = _channelwise(Epilogue(x)) if has_channels else Epilogue(x)
    for more in (_activation, _sum, _activation):
        if not found.then or found.then[-1].name not in LAST:
            found = more(found)
    return found


def sum_of(x: Value) -> Epilogue:
    """The sum of a value and another one that may be computed with it, if there is one."""
    return _sum(Epilogue(x))


def _channelwise(found: Epilogue) -> Epilogue:
    """With a factor for each channel, a term, or both."""
    dtype, value = dtype_of(found.result), _widened(found.result)
    then, operands = list[PostOp](), list[Value]()
    for name, operation in zip(CHANNELWISE, ("multiply", "add"), strict=True):
        users = [] if value is None else _users(value)
        if len(users) == 1 and users[0].name == f"stablehlo.{operation}":
            others = [v for v in users[0].operands if v != value]
            vector = _vector(others[0]) if len(others) == 1 else None
            if vector is not None:
                then.append(PostOp(name))
                operands.append(vector)
                value = users[0].results[0]
    result = _narrowed(value, dtype) if value is not None and then else None
    return found if result is None else Epilogue(result, tuple(then), tuple(operands))


def _vector(x: Value) -> Value | None:
    """The vector in float32 that a value has along its last dimension everywhere; else None."""
    if defining_name(x) != "stablehlo.broadcast_in_dim":
        return None
    source, shape = x.owner.operands[0], shape_of(x)
    dims = list(ir.DenseI64ArrayAttr(x.owner.attributes["broadcast_dimensions"]))
    is_one = dims == [len(shape) - 1] and shape_of(source) == shape[-1:]
    return source if is_one and dtype_of(source) is torch.float32 else None


def _sum(found: Epilogue) -> Epilogue:
    """With a value of the same type that is added to the result and to nothing else of it."""
    dtype, value = dtype_of(found.result), _widened(found.result)
    users = [] if value is None else _users(value)
    if len(users) != 1 or users[0].name != "stablehlo.add":
        return found
    (add,) = users
    others = [v for v in add.operands if v != value]
    if len(others) != 1 or _is_spread(others[0]):
        return found
    result, added = _narrowed(add.results[0], dtype), _before_conversion(others[0], dtype)
    if result is None or added is None:
        return found
    return Epilogue(result, (*found.then, PostOp("add")), (*found.operands, added))


def _activation(found: Epilogue) -> Epilogue:
    """With an activation of the result, if nothing else reads the result or a part of it."""
    dtype, wide = dtype_of(found.result), _widened(found.result)
    for value in dict.fromkeys((found.result, wide)):  # clamps are written in the dtype itself
        for root in [] if value is None else _computed_of(value):
            for name, activation in ACTIVATIONS.items():
                matching = _Matching(value)
                if not (matching.is_(root, activation.expression) and matching.is_closed(root)):
                    continue
                result = root if value == found.result else _narrowed(root, dtype)
                numbers = matching.numbers
                exact = name not in LAST or torch.tensor(numbers, dtype=dtype).tolist() == numbers
                if result is not None and exact and numbers == sorted(numbers):
                    then = (*found.then, PostOp(name, tuple(numbers)))
                    return found._replace(result=result, then=then)
    return found


def _widened(value: Value) -> Value | None:
    """The value in float32; None if something reads it as it is."""
    if dtype_of(value) is torch.float32:
        return value
    return _converted(value, torch.float32)


def _narrowed(value: Value, dtype: torch.dtype) -> Value | None:
    """A float32 value in a dtype; None if it is read in another."""
    return value if dtype is torch.float32 else _converted(value, dtype)


def _converted(value: Value, dtype: torch.dtype) -> Value | None:
    """What a value is converted to, if nothing else reads it."""
    users = _users(value)
    if len(users) != 1 or users[0].name != "stablehlo.convert":
        return None
    result = users[0].results[0]
    return result if dtype_of(result) is dtype else None


def _before_conversion(value: Value, dtype: torch.dtype) -> Value | None:
    """The value of a dtype that was converted to this one of float32, permuted likewise."""
    if dtype is torch.float32:
        return value
    if defining_name(value) == "stablehlo.convert":
        source = value.owner.operands[0]
        return source if dtype_of(source) is dtype else None
    if defining_name(value) != "stablehlo.transpose":
        return None
    source = _before_conversion(value.owner.operands[0], dtype)
    if source is None:
        return None
    with ir.InsertionPoint(value.owner), value.owner.location:
        return transpose(source, list(value.owner.attributes["permutation"]))


class _Matching:
    """Whether a value is an expression of another one."""

    def __init__(self, x: Value) -> None:
        self._x = x
        self._operations: set[ir.Operation] = set()
        self.numbers: list[float] = []

    def is_(self, value: Value, expression: Expression) -> bool:
        """Whether a value is an expression; notes its operations and the numbers with names."""
        if expression is X:
            return value == self._x
        if isinstance(expression, float | str):
            return self._is_number(value, expression)
        name, *operands = expression
        name, _, direction = name.partition(".")
        if value == self._x or defining_name(value) not in (f"stablehlo.{name}", f"chlo.{name}"):
            return False
        op = value.owner.operation
        if direction not in str(op.attributes["comparison_direction"] if direction else ""):
            return False
        known = len(self.numbers)
        orders = [list(op.operands)]
        orders += [orders[0][::-1]] if name in _COMMUTES else []
        for order in orders:
            del self.numbers[known:]
            if all(self.is_(v, e) for v, e in zip(order, operands, strict=True)):
                self._operations.add(op)
                return True
        return False

    def _is_number(self, value: Value, expression: float | str) -> bool:
        number = number_of(value)
        if number is None or math.isnan(number):
            return False
        if isinstance(expression, str):
            self.numbers.append(number)
            return number != 0 or expression != "alpha"
        return number == np.float32(expression)

    def is_closed(self, root: Value) -> bool:
        """Whether only the operations of the expression read the value and what it goes through."""
        inner = [self._x, *(r for op in self._operations for r in op.results if r != root)]
        return all(user in self._operations for value in inner for user in _users(value))


def _computed_of(x: Value) -> Iterator[Value]:
    """Values that are computed of a value and others, the next ones first."""
    waiting, seen = [x], {x}
    while waiting and len(seen) <= _MOST_OPERATIONS:
        for user in _users(waiting.pop(0)):
            results = list(user.results)
            if len(results) == 1 and results[0] not in seen:
                seen.add(results[0])
                waiting.append(results[0])
                yield results[0]


def _users(x: Value) -> list[ir.Operation]:
    return [use.owner.operation for use in x.uses]


def _is_spread(x: Value) -> bool:
    """Whether a value is a smaller one, which an operation reads without its being written."""
    if defining_name(x) == "stablehlo.transpose":
        return _is_spread(x.owner.operands[0])
    return defining_name(x) in ("stablehlo.broadcast_in_dim", "stablehlo.constant")
