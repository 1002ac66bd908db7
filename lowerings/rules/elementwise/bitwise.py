"""Bitwise logic and shifts of whole numbers and booleans."""

from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Value, dtype_of
from xla_dynamo.lowerings.builders.promotion import pointwise
from xla_dynamo.lowerings.table import aten, lowers

lowers(aten.bitwise_not.default)(pointwise(hlo.not_))

for _packet, _build in {
    aten.bitwise_and: hlo.and_,
    aten.bitwise_or: hlo.or_,
    aten.bitwise_xor: hlo.xor,
}.items():
    lowers(_packet.Tensor, _packet.Scalar, _packet.Scalar_Tensor)(pointwise(_build))


def shift_right(x: Value, bits: Value) -> Value:
    """X >> bits; by a negative number or the whole width or more, only the sign is left."""
    if dtype_of(x).is_signed:
        return hlo.shift_right_arithmetic(x, bits)
    return hlo.shift_right_logical(x, bits)


for _shift, _dunder, _build in (
    (aten.bitwise_left_shift, aten.__lshift__, hlo.shift_left),
    (aten.bitwise_right_shift, aten.__rshift__, shift_right),
):
    lowers(
        _shift.Tensor, _shift.Tensor_Scalar, _shift.Scalar_Tensor, _dunder.Tensor, _dunder.Scalar
    )(pointwise(_build))
