"""XLA's names of element types, and shapes: of arrays, and of tuples of them."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

# A shape as Python has it: {"type": "f32", "sizes": (2, 3)}, or a tuple of shapes.
Plain: TypeAlias = Any


class Type:
    """XLA's names of element types."""

    F32 = "f32"
    F64 = "f64"
    BF16 = "bf16"
    F16 = "f16"
    U8 = "u8"
    S8 = "s8"
    U16 = "u16"
    S16 = "s16"
    U32 = "u32"
    S32 = "s32"
    U64 = "u64"
    S64 = "s64"
    C64 = "c64"
    C128 = "c128"
    PRED = "pred"


TORCH_DTYPES = {
    Type.F32: torch.float32,
    Type.F64: torch.float64,
    Type.BF16: torch.bfloat16,
    Type.F16: torch.float16,
    Type.U8: torch.uint8,
    Type.S8: torch.int8,
    Type.U16: torch.uint16,
    Type.S16: torch.int16,
    Type.U32: torch.uint32,
    Type.S32: torch.int32,
    Type.U64: torch.uint64,
    Type.S64: torch.int64,
    Type.C64: torch.complex64,
    Type.C128: torch.complex128,
    Type.PRED: torch.bool,
}
TYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def torch_dtype_of(name: str) -> torch.dtype:
    """The torch dtype of one of XLA's names.

    Raises:
        ValueError: there is no such element type.
    """
    found = TORCH_DTYPES.get(name)
    if found is None:
        raise ValueError(f"{name!r} is no element type: use one of {', '.join(TORCH_DTYPES)}")
    return found


def type_name_of(dtype: torch.dtype) -> str:
    """XLA's name of a torch dtype.

    Raises:
        ValueError: XLA's builder has no such element type.
    """
    found = TYPE_NAMES.get(dtype)
    if found is None:
        raise ValueError(f"the builder has no element type for {dtype}: cast the tensor first")
    return found


class Shape:
    """The shape of an array, or of a tuple."""

    def __init__(self, shape: Plain) -> None:
        """Take a dictionary with "type" and "sizes", or a tuple of them or of shapes."""
        self._shape = _plain(shape)

    @classmethod
    def create(
        cls,
        dtype: str,
        sizes: Sequence[int],
        dynamic_dimensions: Sequence[bool] | None = None,
    ) -> "Shape":
        """The shape of an array of an element type and sizes.

        `dynamic_dimensions` is kept, but values have static sizes.
        """
        plain: dict[str, Any] = {"type": str(dtype), "sizes": tuple(sizes)}
        if dynamic_dimensions is not None:
            plain["dynamic_dimensions"] = tuple(dynamic_dimensions)
        return cls(plain)

    @property
    def shape(self) -> Plain:
        """The dictionary, or the tuple of dictionaries."""
        return self._shape

    def is_tuple(self) -> bool:
        """Whether it is the shape of a tuple."""
        return isinstance(self._shape, tuple)

    def tuple_size(self) -> int:
        """How many elements the tuple has."""
        return len(self._elements())

    def tuple_shape(self, index: int) -> Plain:
        """The dictionary, or the tuple of them, of an element of the tuple."""
        return self._elements()[index]

    def is_dynamic(self) -> bool:
        """Whether dimensions were said to be dynamic."""
        return "dynamic_dimensions" in self._array()

    def as_scalar(self) -> "Shape":
        """The shape of one element."""
        return Shape.create(self.dtype, ())

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return tuple(self._array()["sizes"])

    @property
    def dynamic_dimensions(self) -> tuple[bool, ...] | None:
        """Which dimensions were said to be dynamic."""
        return self._array().get("dynamic_dimensions")

    @property
    def dtype(self) -> str:
        """XLA's name of the element type."""
        return str(self._array()["type"])

    def _array(self) -> dict[str, Any]:
        if self.is_tuple():
            raise ValueError(f"{self} is the shape of a tuple: ask for one of its elements")
        return dict(self._shape)

    def _elements(self) -> tuple[Plain, ...]:
        if not self.is_tuple():
            raise ValueError(f"{self} is the shape of an array, not of a tuple")
        return tuple(self._shape)

    def __str__(self) -> str:
        if self.is_tuple():
            return f"({', '.join(str(Shape(element)) for element in self._shape)})"
        return f"{self.dtype}[{','.join(map(str, self.sizes))}]"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shape) and self._shape == other._shape

    def __hash__(self) -> int:
        return hash(str(self))


def _plain(shape: Any) -> Plain:
    if isinstance(shape, list | tuple):
        return tuple(map(_plain, shape))
    return shape.shape if isinstance(shape, Shape) else shape


def mkshape(
    dtype: str, sizes: Sequence[int], dynamic_dimensions: Sequence[bool] | None = None
) -> Shape:
    """The shape of an array: see `Shape.create`."""
    return Shape.create(dtype, sizes, dynamic_dimensions)


def tensor_shape(tensor: Any, device: str = "") -> Any:
    """The shape of a tensor, or a list of those of several; `device` is not used."""
    if isinstance(tensor, list | tuple):
        return [tensor_shape(one) for one in tensor]
    return Shape.create(type_name_of(tensor.dtype), tuple(map(int, tensor.shape)))
