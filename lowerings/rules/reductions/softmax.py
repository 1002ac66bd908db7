"""Softmax and its logarithm."""

from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.build import Value, cast, normalize_dims, rank_of, reduce
from xla_dynamo.lowerings.rules.reductions.reductions import spread_back, widened
from xla_dynamo.lowerings.table import Context, aten, lowers


def _less_its_maximum(x: Value, dims: list[int]) -> Value:
    return hlo.subtract(x, spread_back(reduce(x, dims, "max"), x, dims))


@lowers(aten._softmax.default)
def softmax(ctx: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    dims = normalize_dims(dim, rank_of(x))
    powers = hlo.exponential(_less_its_maximum(widened(x), dims))
    total = spread_back(reduce(powers, dims, "sum"), powers, dims)
    return cast(hlo.divide(powers, total), ctx.out.dtype)


@lowers(aten._log_softmax.default)
def log_softmax(ctx: Context, x: Value, dim: int, half_to_float: bool) -> Value:
    dims = normalize_dims(dim, rank_of(x))
    x = _less_its_maximum(widened(x), dims)
    total = reduce(hlo.exponential(x), dims, "sum")
    return cast(hlo.subtract(x, spread_back(hlo.log(total), x, dims)), ctx.out.dtype)
