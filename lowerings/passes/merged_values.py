"""Values with merged dimensions, and values with the same elements whose dimensions are split."""

from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.values import Value, defining_name, rank_of, shape_of
from xla_dynamo.lowerings.passes.permuted_operations import clone_with, integer_array, integers
from xla_dynamo.lowerings.passes.splits import (
    Split,
    Wish,
    decided,
    is_merged,
    split_dimensions,
    split_shape,
    unsplit,
)


class MergedValues:
    """The values of a block whose dimensions are known to be merged, and their split forms.

    Attributes:
        sources: by a merged value, one with the same elements in row-major order, and the split.
        computed: by a value that elementwise operations computed, what they wish of its split.
    """

    def __init__(self) -> None:
        self.sources: dict[Value, tuple[Value, Split]] = {}
        self.computed: dict[Value, list[Wish]] = {}
        self._split: dict[tuple[Value, Split], Value] = {}

    def wishes(self, value: Value) -> list[Wish]:
        """What a value wishes of the split of each of its dimensions."""
        if value in self.sources:
            return list(self.sources[value][1])
        if value in self.computed:
            return list(self.computed[value])
        name, op = defining_name(value), value.owner
        wishes: list[Wish] = list(unsplit(shape_of(value)))
        if name == "stablehlo.broadcast_in_dim":
            wishes = [None] * len(wishes)
            inner = self.wishes(op.operands[0])
            for index, dim in enumerate(integers(op, "broadcast_dimensions")):
                if shape_of(op.operands[0])[index] == shape_of(value)[dim]:
                    wishes[dim] = inner[index]
        elif name == "stablehlo.iota":
            dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            wishes = [sizes if d == dim else None for d, sizes in enumerate(wishes)]
        elif name == "stablehlo.rng_bit_generator" or _is_splat(value):
            wishes = [None] * len(wishes)
        return wishes

    def split_of(self, value: Value) -> Split:
        """How the dimensions of a value were merged."""
        return decided(self.wishes(value), shape_of(value))

    def split(self, value: Value, split: Split) -> Value:
        """A value with its dimensions split so, at the insertion point if there was none yet."""
        if not is_merged(split) or rank_of(value) == 0:
            return value
        key = value, split
        if key not in self._split:
            self._split[key] = self._made(value, split)
        return self._split[key]

    def _made(self, value: Value, split: Split) -> Value:
        if value in self.sources:
            return reshape(self.sources[value][0], split_shape(split))
        name, op = defining_name(value), value.owner
        type_ = with_shape(value.type, split_shape(split))
        if _is_splat(value):
            element = op.attributes["value"].get_splat_value()
            return hlo.constant(ir.DenseElementsAttr.get_splat(type_, element))
        if name == "stablehlo.broadcast_in_dim":
            return self._broadcast(op, split)
        if name == "stablehlo.iota":
            dim = ir.IntegerAttr(op.attributes["iota_dimension"]).value
            if len(split[dim]) == 1:
                return hlo.iota(type_, split_dimensions(split)[dim][0])
        if value in self.computed:
            return self.elementwise(op, split)
        return reshape(value, split_shape(split))

    def elementwise(self, op: ir.Operation, split: Split) -> Value:
        """An elementwise operation on split operands."""
        operands = [self.split(operand, split) for operand in op.operands]
        type_ = with_shape(op.results[0].type, split_shape(split))
        return clone_with(op, operands, [type_], {}).results[0]

    def _broadcast(self, op: ir.Operation, split: Split) -> Value:
        """A broadcast to a split shape: what is stretched there is not split."""
        (x,), dims = op.operands, integers(op, "broadcast_dimensions")
        result, parts = shape_of(op.results[0]), split_dimensions(split)
        inner = [
            split[d] if n == result[d] else (n,) for n, d in zip(shape_of(x), dims, strict=True)
        ]
        # A dimension of size 1 that is stretched is stretched along the last of several.
        into = [parts[d][-len(s) :] for s, d in zip(inner, dims, strict=True)]
        type_ = with_shape(op.results[0].type, split_shape(split))
        flat = integer_array([d for several in into for d in several])
        return hlo.broadcast_in_dim(type_, self.split(x, tuple(inner)), flat)


def _is_splat(value: Value) -> bool:
    """Whether a value is a constant with one number for all elements; not of complex ones.

    MLIR's Python reads no attribute of complex elements.
    """
    if defining_name(value) != "stablehlo.constant":
        return False
    if isinstance(ir.RankedTensorType(value.type).element_type, ir.ComplexType):
        return False
    return ir.DenseElementsAttr(value.owner.attributes["value"]).is_splat


def with_shape(type_: ir.Type, shape: Sequence[int]) -> ir.Type:
    """The type of a tensor of another shape and the same elements."""
    return ir.RankedTensorType.get(list(shape), ir.RankedTensorType(type_).element_type)


def reshape(x: Value, shape: Sequence[int]) -> Value:
    """The same elements in row-major order under another shape."""
    return x if list(shape_of(x)) == list(shape) else hlo.reshape(with_shape(x.type, shape), x)
