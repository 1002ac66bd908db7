"""Pointwise rules from one StableHLO builder: torch's type promotion and broadcasting around it."""

from collections.abc import Callable
from typing import Any

import torch

from xla_dynamo.lowerings.builders.build import (
    Value,
    broadcast_shapes,
    broadcast_to,
    cast,
    dtype_of,
    full,
    is_value,
    shape_of,
)
from xla_dynamo.lowerings.builders.from_jax import call_jax
from xla_dynamo.lowerings.table import Context, Rule
from xla_dynamo.torch_private import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from xla_dynamo.torch_private import elementwise_dtypes, get_computation_dtype


def promote(
    ctx: Context, *args: Any, kind: KIND = KIND.DEFAULT, rounds_numbers: bool = False
) -> list[Value]:
    """Bring a pointwise op's operands (values or numbers) to one shape and one dtype.

    The dtype is torch's computation dtype for these operands, so that sub-32-bit floats are
    computed in float32 as torch's kernels do. `args` must be the leading positional arguments of
    the op: 0-d tensors and numbers weigh less than tensors in promotion, which `ctx.operands`
    tells.

    `rounds_numbers`: eager's kernel has numbers and 0-d tensors in the operands' common dtype, so
    that a bfloat16 of 0.1 equals 0.1, where others compute with them in full.
    """
    operands = ctx.operands[: len(args)]
    compute, _ = elementwise_dtypes(*operands, type_promotion_kind=kind)
    if rounds_numbers:
        _, common = elementwise_dtypes(*operands, type_promotion_kind=KIND.DEFAULT)
        args = tuple(spread(args, common))
    return spread(args, compute)


def spread(args: Any, dtype: torch.dtype) -> list[Value]:
    """Cast values and numbers to dtype and broadcast them to their common shape."""
    shape = broadcast_shapes(*[shape_of(a) for a in args if is_value(a)])
    return [
        broadcast_to(cast(a, dtype), shape) if is_value(a) else full(shape, a, dtype) for a in args
    ]


def pointwise(
    build: Callable[..., Value], kind: KIND = KIND.DEFAULT, *, rounds_numbers: bool = False
) -> Rule:
    """The rule of a pointwise op whose arguments are all operands: promote, build, cast back.

    >>> lowers(aten.atan2.default)(pointwise(hlo.atan2, KIND.INT_TO_FLOAT))
    """

    def rule(ctx: Context, *args: Any) -> Value:
        operands = promote(ctx, *args, kind=kind, rounds_numbers=rounds_numbers)
        return cast(build(*operands), ctx.out.dtype)

    return rule


def pointwise_in_jax(function: Callable[..., Any], kind: KIND = KIND.DEFAULT) -> Rule:
    """Like `pointwise`, of a module-level JAX function of arrays.

    >>> lowers(aten.gcd.default)(pointwise_in_jax(jnp.gcd))
    """

    def rule(ctx: Context, *args: Any) -> Value:
        return cast(call_jax(ctx, function, *promote(ctx, *args, kind=kind)), ctx.out.dtype)

    return rule


def computed_in(x: Value) -> torch.dtype:
    """The dtype torch's kernels compute in for operands of x's dtype: float32 for half types."""
    return get_computation_dtype(dtype_of(x))


__all__ = ["KIND", "computed_in", "pointwise", "pointwise_in_jax", "promote", "spread"]
