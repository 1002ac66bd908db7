"""Rules of bounded programs: operations that combine or choose elements, behind masks."""

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.alignment import Row
from xla_dynamo.lowerings.bounded.context import BoundedContext, allow, bounds, refuse_dynamic
from xla_dynamo.lowerings.bounded.dimensions import (
    Dim,
    Dims,
    dim_sizes,
    is_free,
    joined,
    static_dim,
)
from xla_dynamo.lowerings.bounded.extents import Refused, Sizes, is_dynamic
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.operation_names import named
from xla_dynamo.lowerings.builders.reductions import (
    SELECTIONS,
    is_neutral,
    names_in_body,
    reduction_of,
)

# What a reduction may fold with: the start changes nothing, however often it is folded in.
# The body of a reduction of several operands that keeps one of them, as argmax does.
_CHOOSING = SELECTIONS | named("compare select not xor return constant")


@bounds("stablehlo.reduce")
def reduce(ctx: BoundedContext, row: Row) -> None:
    """What is arbitrary becomes the number that the reduction starts with."""
    allow(row)
    count = len(row.op.results)
    over = list(ir.DenseI64ArrayAttr(row.op.attributes["dimensions"]))
    given = [ctx.operand(row, i) for i in range(count)]
    dims = [joined(each) for each in zip(*given, strict=True)]
    masked = {d: dims[d] for d in over if is_free(dims[d])}
    if masked:
        _check_start(row)
        for i in range(count):
            x, start = row.op.operands[i], row.op.operands[count + i]
            row.op.operands[i] = ctx.masks.masked(x, masked, start)
    for result in row.op.results:
        ctx.dims[result] = tuple(dim for d, dim in enumerate(dims) if d not in over)


def _check_start(row: Row) -> None:
    """Raise Refused unless the start of a reduction may be folded in any number of times."""
    reduction = reduction_of(row.op) if len(row.op.results) == 1 else ""
    if reduction:
        if is_neutral(row.op.operands[1], reduction):
            return
    elif all(name in _CHOOSING for name in names_in_body(row.op)):
        return
    raise Refused("it reduces a dynamic dimension in a way that is not followed")


@bounds("stablehlo.dot_general")
def dot_general(ctx: BoundedContext, row: Row) -> None:
    """What is arbitrary in a contracted dimension becomes 0, in both factors."""
    allow(row)
    numbers = hlo.DotDimensionNumbers(row.op.attributes["dot_dimension_numbers"])
    batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    over = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    given = ctx.operand(row, 0), ctx.operand(row, 1)
    pairs = list(zip(*over, strict=True))
    contracted = [joined([given[0][i], given[1][j]]) for i, j in pairs]
    for side in (0, 1):
        masked = {over[side][n]: dim for n, dim in enumerate(contracted) if is_free(dim)}
        if masked:
            x = row.op.operands[side]
            zero = build.scalar(0, build.dtype_of(x))
            row.op.operands[side] = ctx.masks.masked(x, masked, zero)
    result = [joined([given[0][i], given[1][j]]) for i, j in zip(*batch, strict=True)]
    for side in (0, 1):
        taken = {*batch[side], *over[side]}
        result += [dim for d, dim in enumerate(given[side]) if d not in taken]
    ctx.dims[row.op.results[0]] = tuple(result)


@bounds("stablehlo.gather")
def gather(ctx: BoundedContext, row: Row) -> None:
    """An index into a dynamic dimension is kept among its elements of the graph."""
    allow(row, "slice_sizes")
    numbers = hlo.GatherDimensionNumbers(row.op.attributes["dimension_numbers"])
    operand, indices = ctx.operand(row, 0), list(ctx.operand(row, 1))
    vector = numbers.index_vector_dim
    batching = dict(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    slices, whole = row.integers("slice_sizes"), row.operand(0)
    limits: dict[int, Dim] = {}
    for d, dim in enumerate(operand):
        if d in batching:
            indices[batching[d]] = joined([indices[batching[d]], dim])
        elif not is_free(dim):
            if is_dynamic(slices[d]):
                raise Refused("how much it gathers depends on a dynamic size")
        elif slices[d] != whole[d]:
            if set(slices[d]) != {1}:
                raise Refused("it gathers parts of a dynamic dimension")
            if d not in numbers.start_index_map:
                raise Refused("it gathers parts of a dynamic dimension")
            limits[list(numbers.start_index_map).index(d)] = dim
    if vector < len(indices):
        refuse_dynamic((indices[vector],), "the number of its indices is dynamic")
    if limits:
        row.op.operands[1] = _clamped(ctx, row.op.operands[1], vector, limits)
    left = [dim for d, dim in enumerate(indices) if d != vector]
    gone = {*numbers.collapsed_slice_dims, *batching}
    parts = [
        operand[d] if slices[d] == whole[d] else static_dim(slices[d])
        for d in range(len(operand))
        if d not in gone
    ]
    offsets = list(numbers.offset_dims)
    rank = len(left) + len(parts)
    dims = [parts.pop(0) if d in offsets else left.pop(0) for d in range(rank)]
    _note(ctx, row, tuple(dims))


def _clamped(
    ctx: BoundedContext, indices: ir.Value, vector: int, limits: dict[int, Dim]
) -> ir.Value:
    """Indices that are at most the last of the graph's elements, for some of their numbers."""
    shape, dtype = build.shape_of(indices), build.dtype_of(indices)
    highest = torch.iinfo(dtype).max
    listed = []
    for number in range(shape[vector] if vector < len(shape) else 1):
        last = build.scalar(highest, dtype)
        if number in limits:
            last = ctx.value(ctx.count(limits[number]).plus(-1), dtype)
        listed.append(build.reshape(last, [1]))
    bound = build.concatenate(listed, 0)
    if vector < len(shape):
        return hlo.minimum(indices, build.broadcast_in_dim(bound, shape, [vector]))
    return hlo.minimum(indices, build.broadcast_in_dim(build.reshape(bound, []), shape, []))


def _note(ctx: BoundedContext, row: Row, dims: Dims) -> None:
    """Note the dimensions of a result, which must have its sizes."""
    if list(map(dim_sizes, dims)) != row.result():
        raise Refused("its dynamic dimensions are not followed")
    ctx.dims[row.op.results[0]] = dims


@bounds("stablehlo.dynamic_slice")
def dynamic_slice(ctx: BoundedContext, row: Row) -> None:
    """Where a part of a dynamic dimension begins is kept so that it has elements of the graph."""
    allow(row, "slice_sizes")
    taken = row.integers("slice_sizes")
    _note(ctx, row, _moved(ctx, row, ctx.operand(row, 0), row.operand(0), taken, first=1))


@bounds("stablehlo.dynamic_update_slice")
def dynamic_update_slice(ctx: BoundedContext, row: Row) -> None:
    """Likewise; the part is written over elements of the graph alone."""
    allow(row)
    dims, part = list(ctx.operand(row, 0)), ctx.operand(row, 1)
    moved = _moved(ctx, row, tuple(dims), row.operand(0), row.operand(1), first=2)
    for d, (dim, of_part) in enumerate(zip(moved, part, strict=True)):
        if row.operand(0)[d] == row.operand(1)[d]:
            dims[d] = joined([dim, of_part])
        elif is_free(of_part):
            raise Refused("it writes a dynamic dimension into another")
    _note(ctx, row, tuple(dims))


def _moved(
    ctx: BoundedContext, row: Row, dims: Dims, whole: list[Sizes], taken: list[Sizes], first: int
) -> Dims:
    """The dimensions of the part at some starts, the operands from `first` on."""
    found = []
    for d, dim in enumerate(dims):
        if whole[d] == taken[d]:
            found.append(dim)
            continue
        if is_dynamic(taken[d]):
            raise Refused("how much it takes depends on a dynamic size")
        if is_free(dim):
            last = ctx.count(dim).plus(-taken[d][0])
            if not last.never_below(0, ctx.symbols.lows):
                raise Refused("it slices a dynamic dimension where it may have too few elements")
            start = row.op.operands[first + d]
            row.op.operands[first + d] = hlo.minimum(start, ctx.value(last, build.dtype_of(start)))
        found.append(static_dim(taken[d]))
    return tuple(found)


@bounds("stablehlo.sort")
def sort(ctx: BoundedContext, row: Row) -> None:
    """Only along a static dimension."""
    allow(row)
    along = ir.IntegerAttr(row.op.attributes["dimension"]).value
    given = [ctx.operand(row, i) for i in range(len(row.op.operands))]
    dims = tuple(joined(each) for each in zip(*given, strict=True))
    refuse_dynamic(dims[along : along + 1], "it sorts along a dynamic dimension")
    for result in row.op.results:
        ctx.dims[result] = dims


@bounds("stablehlo.reduce_window")
def reduce_window(ctx: BoundedContext, row: Row) -> None:
    """Windows over static dimensions, and those that end at each element of a dynamic one."""
    allow(row, "window_dimensions", "padding")
    if len(row.op.results) != 1:
        raise Refused("it reduces windows of several values")
    found = []
    pads = [list(map(tuple, paddings_of(op))) for op in row.ops]
    windows = row.integers("window_dimensions")
    for d, dim in enumerate(ctx.operand(row, 0)):
        before, after, window = row.operand(0)[d], row.result()[d], windows[d]
        low, high = zip(*(of_one[d] for of_one in pads), strict=True)
        if not is_free(dim):
            if any(map(is_dynamic, (window, low, high))):
                raise Refused("its windows depend on a dynamic size")
            found.append(static_dim(after))
            continue
        # Each element sees those before it, and the padding behind is never read.
        causal = all(n - 1 == pad for n, pad in zip(window, low, strict=True)) and not any(high)
        if before != after or not causal or not _is_plain(row, d):
            raise Refused("its windows reach behind the end of a dynamic dimension")
        found.append(dim)
    _note(ctx, row, tuple(found))


def paddings_of(op: ir.Operation) -> list[list[int]]:
    """The low and the high padding of each dimension of an operation with windows."""
    rank = build.rank_of(op.operands[0])
    if "padding" not in op.attributes:
        return [[0, 0]] * rank
    flat = [int(n) for n in ir.DenseIntElementsAttr(op.attributes["padding"])]
    flat = flat * (2 * rank // len(flat))  # of a splat, one element is listed
    return [flat[2 * d : 2 * d + 2] for d in range(rank)]


def _is_plain(row: Row, dim: int) -> bool:
    """Whether windows move by one element, and have no gaps."""
    names = ("window_strides", "base_dilations", "window_dilations")
    given = [row.op.attributes[name] for name in names if name in row.op.attributes]
    return all(list(ir.DenseI64ArrayAttr(one))[dim] == 1 for one in given)


@bounds("stablehlo.convolution")
def convolution(ctx: BoundedContext, row: Row) -> None:
    """Only images may be of a dynamic number."""
    allow(row)
    numbers = hlo.ConvDimensionNumbers(row.op.attributes["dimension_numbers"])
    refuse_dynamic(ctx.operand(row, 1), "its kernel is of a dynamic size")
    images = ctx.operand(row, 0)
    others = tuple(d for i, d in enumerate(images) if i != numbers.input_batch_dimension)
    refuse_dynamic(others, "its images are of a dynamic size")
    if ir.IntegerAttr(row.op.attributes["batch_group_count"]).value != 1:
        raise Refused("it groups images of a dynamic number")
    dims = [static_dim(sizes) for sizes in row.result()]
    dims[numbers.output_batch_dimension] = images[numbers.input_batch_dimension]
    _note(ctx, row, tuple(dims))
