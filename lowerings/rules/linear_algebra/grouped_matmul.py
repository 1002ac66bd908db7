"""Matrix products of rows sorted by group, as mixtures of experts use them."""

import torch
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.build import Value
from xla_dynamo.lowerings.kernels import call
from xla_dynamo.lowerings.table import Context, lowers


def _members(offs: Value, rows: int) -> Value:
    """bool[rows, groups]: whether a row belongs to a group; offs are the groups' ends."""
    groups = build.shape_of(offs)[0]
    ends = build.cast(offs, torch.int64)
    starts = build.concatenate(
        [build.full([1], 0, torch.int64), build.slice_dim(ends, 0, 0, groups - 1)], 0
    )
    shape = [rows, groups]
    row = build.iota(shape, 0, torch.int64)
    after = build.compare(row, build.broadcast_in_dim(starts, shape, [1]), "GE")
    before = build.compare(row, build.broadcast_in_dim(ends, shape, [1]), "LT")
    return hlo.and_(after, before)


def _masked(x: Value, members: Value, dims: list[int]) -> Value:
    """Put 0 where x's row is not in the group; dims are those of rows and groups in x."""
    mask = build.broadcast_in_dim(members, build.shape_of(x), dims)
    return build.where(mask, x, build.full_like(x, 0))


def grouped_product(x: Value, weight: Value, members: Value, contract: int) -> Value:
    """Each row of x times its group's matrix; zero for rows in no group.

    Every row meets every group's matrix, in one product, and its own is selected: StableHLO has no
    product of ragged groups. With G groups that is G times the arithmetic of the ragged form.
    """
    every = build.dot_general(x, weight, ([1], [contract]))  # [rows, groups, out]
    return build.reduce(_masked(every, members, [0, 1]), [1], "sum")


@lowers("transformers.grouped_mm_fallback.default", "xla.grouped_product.default")
def grouped_mm_fallback(ctx: Context, input: Value, weight: Value, offs: Value) -> Value:
    result = call(ctx, "grouped_product", input, weight, offs)
    if result is not None:
        return result
    members = _members(offs, build.shape_of(input)[0])
    return grouped_product(input, weight, members, contract=1)


@lowers("xla.grouped_outer_product.default")
def grouped_outer_product(ctx: Context, input: Value, grad_output: Value, offs: Value) -> Value:
    result = call(ctx, "grouped_outer_product", input, grad_output, offs)
    if result is not None:
        return result
    members = _members(offs, build.shape_of(input)[0])
    rows, groups = build.shape_of(members)
    width = build.shape_of(input)[1]
    spread = build.broadcast_in_dim(input, [rows, groups, width], [0, 2])
    return build.dot_general(_masked(spread, members, [0, 1]), grad_output, ([0], [0]))


@lowers("transformers.grouped_mm_fallback_backward.default")
def grouped_mm_fallback_backward(
    ctx: Context, input: Value, weight: Value, offs: Value, grad_output: Value
) -> tuple[Value, Value]:
    grad_input = call(ctx, "grouped_product", grad_output, build.transpose(weight, [0, 2, 1]), offs)
    if grad_input is None:
        members = _members(offs, build.shape_of(input)[0])
        grad_input = grouped_product(grad_output, weight, members, contract=2)
    return grad_input, grouped_outer_product(ctx, input, grad_output, offs)
