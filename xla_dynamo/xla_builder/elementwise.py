"""Operations on elements, and constants, of XLA's builder in StableHLO."""

from typing import Any

import torch
from jax.extend.mlir.dialects import chlo
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value, dtype_of, shape_of
from xla_dynamo.lowerings.builders.dtypes import tensor_type
from xla_dynamo.xla_builder.shapes import Shape, torch_dtype_of
from xla_dynamo.xla_builder.table import OPERATIONS, Operation, operation


def together(name: str, x: Value, y: Value) -> tuple[Value, Value]:
    """Two operands of one shape: a scalar, and sizes of 1, are broadcast.

    Raises:
        ValueError: they have different element types, or sizes that do not fit.
    """
    if x.type.element_type != y.type.element_type:
        raise ValueError(
            f"{name} of {_told(x)} and {_told(y)}: operands have one element type; use cast"
        )
    shapes = shape_of(x), shape_of(y)
    fits = len(shapes[0]) == len(shapes[1]) and all(
        a == b or 1 in (a, b) for a, b in zip(*shapes, strict=True)
    )
    if not fits and () not in shapes:
        raise ValueError(
            f"{name} of {_told(x)} and {_told(y)}: operands have one rank, and sizes that are "
            "equal or 1; use broadcast_in_dim"
        )
    common = build.broadcast_shapes(*shapes)
    return build.broadcast_to(x, common), build.broadcast_to(y, common)


def _told(x: Value) -> str:
    return f"{dtype_of(x)}{list(shape_of(x))}"


def _unary(build_: Operation) -> Operation:
    return lambda x: build_(x)


def _binary(name: str, build_: Operation) -> Operation:
    return lambda x, y: build_(*together(name, x, y))


def _comparison(name: str) -> Operation:
    return lambda x, y: build.compare(*together(name, x, y), name.upper())


def shift_right(x: Value, y: Value) -> Value:
    """Shift to the right; the sign of a signed integer stays."""
    signed = dtype_of(x).is_signed
    return (hlo.shift_right_arithmetic if signed else hlo.shift_right_logical)(x, y)


_UNARY: dict[str, Operation] = {
    "Abs": hlo.abs, "Acos": chlo.acos, "Asin": chlo.asin, "Atan": chlo.atan, "Ceil": hlo.ceil,
    "Clz": hlo.count_leading_zeros, "Cos": hlo.cosine, "Cosh": chlo.cosh, "Erf": chlo.erf,
    "Erfc": chlo.erfc, "ErfInv": chlo.erf_inv, "Exp": hlo.exponential,
    "Expm1": hlo.exponential_minus_one, "Floor": hlo.floor, "Log": hlo.log,
    "Log1p": hlo.log_plus_one, "Neg": hlo.negate, "Not": hlo.not_, "Rsqrt": hlo.rsqrt,
    "Sin": hlo.sine, "Sinh": chlo.sinh, "Sqrt": hlo.sqrt, "Tan": hlo.tan, "Tanh": hlo.tanh,
}  # fmt: skip
_BINARY: dict[str, Operation] = {
    "Add": build.add, "And": hlo.and_, "Atan2": hlo.atan2, "Div": hlo.divide, "Max": hlo.maximum,
    "Min": hlo.minimum, "Mul": hlo.multiply, "Or": hlo.or_, "Pow": hlo.power,
    "Rem": hlo.remainder, "ShiftLeft": hlo.shift_left, "ShiftRight": shift_right,
    "Sub": hlo.subtract, "Xor": hlo.xor,
}  # fmt: skip

OPERATIONS.update({name: _unary(build_) for name, build_ in _UNARY.items()})
OPERATIONS.update({name: _binary(name, build_) for name, build_ in _BINARY.items()})
OPERATIONS.update({name: _comparison(name) for name in ("Eq", "Ne", "Le", "Lt", "Ge", "Gt")})
OPERATIONS["ShifRight"] = OPERATIONS["ShiftRight"]  # as PyTorch/XLA spells it


@operation("Square")
def square(x: Value) -> Value:
    """The square, x * x."""
    return hlo.multiply(x, x)


@operation("Real")
def real(x: Value) -> Value:
    """The real part."""
    return hlo.real(x)


@operation("Imag")
def imag(x: Value) -> Value:
    """The imaginary part, zero of a real number."""
    return hlo.imag(x)


@operation("Conj")
def conj(x: Value) -> Value:
    """The conjugate: a real number itself."""
    return hlo.complex(hlo.real(x), hlo.negate(hlo.imag(x))) if dtype_of(x).is_complex else x


@operation("Clamp")
def clamp(x: Value, low: Value, high: Value) -> Value:
    """The nearest number between two bounds, which may be scalars."""
    return hlo.clamp(low, x, high)


@operation("Select")
def select(condition: Value, x: Value, y: Value) -> Value:
    """Elements of x where a condition, of one or of as many booleans, is true, else of y."""
    return hlo.select(condition, *together("Select", x, y))


@operation("Convert")
def convert(x: Value, to_type: str) -> Value:
    """Another element type, as XLA converts: floats that do not fit an integer are the nearest."""
    dtype = torch_dtype_of(to_type)
    if dtype_of(x).is_complex and not dtype.is_complex:
        x = hlo.real(x)
    return x if dtype_of(x) is dtype else hlo.convert(tensor_type(shape_of(x), dtype), x)


@operation("BitcastConvert")
def bitcast(x: Value, to_type: str) -> Value:
    """The same bits as another element type.

    A narrower one adds a dimension, and a wider one takes the last.
    """
    dtype, given, shape = torch_dtype_of(to_type), dtype_of(x), shape_of(x)
    if dtype.itemsize < given.itemsize:
        shape = (*shape, given.itemsize // dtype.itemsize)
    elif dtype.itemsize > given.itemsize:
        shape = shape[:-1]
    return hlo.bitcast_convert(tensor_type(shape, dtype), x)


# --- constants ----------------------------------------------------------------------------------


@operation("Constant")
def constant(value: torch.Tensor) -> Value:
    """A tensor's elements."""
    value = value.detach().cpu().resolve_conj().resolve_neg()
    if value.numel() == 1:
        return build.full(tuple(value.shape), value.item(), value.dtype)
    if value.dtype.is_complex:
        return hlo.complex(constant(value.real.clone()), constant(value.imag.clone()))
    if value.dtype in (torch.bfloat16, torch.float16):  # to a wider type, nothing is lost
        wide = constant(value.float())
        return hlo.convert(tensor_type(tuple(value.shape), value.dtype), wide)
    return build.array(value.numpy(), value.dtype)


@operation("Iota")
def iota(shape: Any, iota_dimension: int) -> Value:
    """Counts 0, 1, 2, ... along a dimension of a shape."""
    shape = shape if isinstance(shape, Shape) else Shape(shape)
    return build.iota(shape.sizes, iota_dimension, torch_dtype_of(shape.dtype))
