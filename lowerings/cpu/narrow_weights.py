"""Products whose second factor was converted from a narrow dtype: a call of a kernel for these."""

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.builders.values import defining_name, source_of
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.table import Context


def narrow_product(ctx: Context, x: Value, y: Value) -> Value | None:
    """The product [m, k] @ [k, n] in float32, by a kernel that reads y before its conversion.

    None where y is no conversion, where its columns do not lie one after another before it, or
    where the kernel is not there or does not pay.
    """
    if build.rank_of(x) != 2 or build.rank_of(y) != 2:
        return None
    y, turned = _untransposed(y, False)
    if defining_name(y) != "stablehlo.convert":
        return None
    weight, turned = _untransposed(y.owner.operands[0], turned)
    if not turned or build.dtype_of(x) is not build.dtype_of(y):
        return None
    return call(ctx, "narrow_product", x, weight)


def _untransposed(x: Value, turned: bool) -> tuple[Value, bool]:
    """What x is a transpose of, if it is one, and whether that is turned then."""
    source, permutation = source_of(x)
    return source, turned != (permutation == [1, 0])
