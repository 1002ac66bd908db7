"""Rules of bounded programs: operations that compute element by element, or move elements."""

import torch
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.alignment import Row
from xla_dynamo.lowerings.bounded.context import BoundedContext, allow, bounds, refuse_dynamic
from xla_dynamo.lowerings.bounded.dimensions import (
    Atom,
    Dim,
    dim_sizes,
    is_free,
    joined,
    regrouped,
    simplified,
    static_dim,
    uniform_dim,
)
from xla_dynamo.lowerings.bounded.extents import Refused, Sizes, constant, is_dynamic
from xla_dynamo.lowerings.bounded.numbers import computed_number
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE, named

_BY_ELEMENT = ELEMENTWISE | named(
    "bitcast_convert complex count_leading_zeros imag popcnt real reduce_precision "
    "shift_left shift_right_arithmetic shift_right_logical"
)
_BY_ELEMENT |= named(
    "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma is_inf is_neg_inf is_pos_inf "
    "lgamma next_after polygamma sinh tan zeta",
    "chlo",
)


@bounds(*_BY_ELEMENT)
def by_element(ctx: BoundedContext, row: Row) -> None:
    """Each element of the result is computed from the operands' at the same index."""
    allow(row)
    sizes = row.result()
    given = [ctx.operand(row, i) for i in range(len(row.op.operands))]
    given = [dims for dims in given if dims or not sizes]  # scalars, as the bounds of a clamp
    if any([dim_sizes(d) for d in dims] != sizes for dims in given):
        raise Refused("its operands have other sizes than its result")
    ctx.dims[row.op.results[0]] = tuple(joined(each) for each in zip(*given, strict=True))


@bounds("stablehlo.optimization_barrier")
def barrier(ctx: BoundedContext, row: Row) -> None:
    """The operands as they are."""
    for i, result in enumerate(row.op.results):
        ctx.dims[result] = ctx.operand(row, i)


@bounds("stablehlo.iota")
def iota(ctx: BoundedContext, row: Row) -> None:
    """Each element has its own number, whatever the extent is."""
    allow(row)
    along = ir.IntegerAttr(row.op.attributes["iota_dimension"]).value
    dims = [uniform_dim(sizes) for sizes in row.result()]
    if is_dynamic(sizes := row.result()[along]):
        dims[along] = (Atom(sizes, ctx.symbols.wanted(sizes)),)
    ctx.dims[row.op.results[0]] = tuple(dims)


@bounds("stablehlo.rng_bit_generator")
def random_bits(ctx: BoundedContext, row: Row) -> None:
    """Each element has a number of its own; which numbers they are depends on the bounds."""
    state, bits = row.op.results
    ctx.dims[state] = ctx.operand(row, 0)
    ctx.dims[bits] = tuple(
        (Atom(sizes, ctx.symbols.wanted(sizes)),) if is_dynamic(sizes) else static_dim(sizes)
        for sizes in row.result(1)
    )


@bounds("stablehlo.broadcast_in_dim")
def broadcast(ctx: BoundedContext, row: Row) -> None:
    """Dimensions that are new, or of size 1 before, are uniform."""
    allow(row)
    dims = [uniform_dim(sizes) for sizes in row.result()]
    result_dims = list(ir.DenseI64ArrayAttr(row.op.attributes["broadcast_dimensions"]))
    for dim, result_dim, before in zip(
        ctx.operand(row, 0), result_dims, row.operand(0), strict=True
    ):
        if before == row.result()[result_dim]:
            dims[result_dim] = dim
        elif set(before) != {1}:
            raise Refused("it repeats a dynamic dimension")
    ctx.dims[row.op.results[0]] = tuple(dims)


@bounds("stablehlo.reshape")
def reshape(ctx: BoundedContext, row: Row) -> None:
    """Atoms stay whole."""
    ctx.dims[row.op.results[0]] = regrouped(ctx.operand(row, 0), row.result())


@bounds("stablehlo.transpose")
def transpose(ctx: BoundedContext, row: Row) -> None:
    """Dimensions in another order."""
    allow(row)
    permutation = list(ir.DenseI64ArrayAttr(row.op.attributes["permutation"]))
    dims = ctx.operand(row, 0)
    ctx.dims[row.op.results[0]] = tuple(dims[d] for d in permutation)


@bounds("stablehlo.reverse")
def reverse(ctx: BoundedContext, row: Row) -> None:
    """Only static dimensions are turned."""
    allow(row)
    dims = ctx.operand(row, 0)
    for d in ir.DenseI64ArrayAttr(row.op.attributes["dimensions"]):
        refuse_dynamic(dims[d : d + 1], "it reverses a dynamic dimension")
    ctx.dims[row.op.results[0]] = dims


@bounds("stablehlo.slice")
def slice_(ctx: BoundedContext, row: Row) -> None:
    """A part of a dynamic dimension begins at a number, or is a number of elements at its end."""
    allow(row, "start_indices", "limit_indices")
    given = zip(
        ctx.operand(row, 0),
        row.operand(0),
        row.integers("start_indices"),
        row.integers("limit_indices"),
        row.integers("strides"),
        row.result(),
        strict=True,
    )
    dims, starts, moves = [], [], False
    for dim, before, start, limit, stride, after in given:
        if after == before:
            dims.append(dim)
        elif not any(map(is_dynamic, (before, start, limit))):
            dims.append(static_dim(after))
        elif set(stride) != {1}:
            raise Refused("it takes every n-th element of a dynamic dimension")
        else:
            dims.append(_part(ctx, dim, before, start, after))
        starts.append(start)
        moves |= is_dynamic(start)
    if not moves:
        ctx.dims[row.op.results[0]] = tuple(dims)
        return
    at = [ctx.value(ctx.symbols.wanted(start), torch.int64) for start in starts]
    sizes = [sizes[0] for sizes in row.result()]
    ctx.replace(row.op.results[0], hlo.dynamic_slice(row.op.operands[0], at, sizes), tuple(dims))


def _part(ctx: BoundedContext, dim: Dim, before: Sizes, start: Sizes, after: Sizes) -> Dim:
    """A slice of a dimension, which must lie among the elements of the graph at all sizes."""
    symbols = ctx.symbols
    whole = ctx.count(dim) if is_free(dim) else constant(before[0])
    first, taken = symbols.wanted(start), symbols.wanted(after)
    rest = whole.plus(first, -1).plus(taken, -1)
    # At the bounds it lies in the dimension, since else the program would not be one. A static
    # dimension has elements of the graph everywhere, so below the bounds nothing is missing.
    if is_free(dim) and not rest.never_below(0, symbols.lows):
        raise Refused("it slices a dynamic dimension where it may have too few elements")
    if is_dynamic(start) and is_dynamic(after):
        raise Refused("both where it begins and how much it takes depend on dynamic sizes")
    return (Atom(after, taken),) if is_dynamic(after) else static_dim(after)


@bounds("stablehlo.concatenate")
def concatenate(ctx: BoundedContext, row: Row) -> None:
    """Along a dynamic dimension, each part is written where the one before it ends at run time."""
    allow(row)
    along, (result,) = ir.IntegerAttr(row.op.attributes["dimension"]).value, row.op.results
    given = [ctx.operand(row, i) for i in range(len(row.op.operands))]
    dims = [
        given[0][d] if d == along else joined([of_one[d] for of_one in given])
        for d in range(len(given[0]))
    ]
    if len({of_one[along] for of_one in given}) == 1 and _is_reshaped(result):
        # Parts of one size, as `stack` makes them: they are a dimension of their own.
        count = static_dim((len(given),) * len(row.ops))
        dims[along] = simplified((*count, *given[0][along]))
        ctx.dims[result] = tuple(dims)
        return
    if not any(is_free(of_one[along]) for of_one in given):
        dims[along] = static_dim(row.result()[along])
        ctx.dims[result] = tuple(dims)
        return
    end = constant(0)
    made = None
    for i, value in enumerate(list(row.op.operands)):
        if i == 0:
            high = [0] * len(dims)
            high[along] = row.result()[along][0] - row.operand(0)[along][0]
            made = build.pad(value, 0, [0] * len(dims), high)
        else:
            at = [build.scalar(0, torch.int64)] * len(dims)
            at[along] = ctx.value(end, torch.int64)
            made = hlo.dynamic_update_slice(made, value, at)
        of_one = given[i][along]
        size = row.operand(i)[along][0]
        end = end.plus(ctx.count(of_one) if is_free(of_one) else size)
    if end.at([s[0] for s in ctx.symbols.sizes]) != row.result()[along][0]:
        raise Refused("the sizes that it joins are not followed")
    dims[along] = (Atom(row.result()[along], end),)
    assert made is not None
    ctx.replace(result, made, tuple(dims))


def _is_reshaped(value: ir.Value) -> bool:
    """Whether all that a value is used for is another shape of it."""
    return all(use.owner.name == "stablehlo.reshape" for use in value.uses)


@bounds("stablehlo.pad")
def pad(ctx: BoundedContext, row: Row) -> None:
    """Padding begins behind the extent, so what is arbitrary there becomes padding first."""
    allow(row)
    x, number = row.op.operands
    before = ctx.operand(row, 0)
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    given = zip(before, *(row.integers(name) for name in names), row.result(), strict=True)
    dims, filled = [], {}
    for d, (dim, low, high, interior, after) in enumerate(given):
        if any(map(is_dynamic, (low, interior))) or (is_free(dim) and is_dynamic(high)):
            raise Refused("how much it pads depends on a dynamic size")
        if not is_free(dim):
            is_whole = not is_dynamic(after)
            dims.append(
                static_dim(after) if is_whole else (Atom(after, ctx.symbols.wanted(after)),)
            )
        elif not (any(low) or any(high) or any(interior)):
            dims.append(dim)
        elif any(interior) or min(low) < 0:
            raise Refused("it puts numbers between the elements of a dynamic dimension")
        else:
            extent = ctx.count(dim).plus(low[0] + high[0])
            if not extent.never_below(0, ctx.symbols.lows):
                raise Refused("it cuts a dynamic dimension")
            if high[0] > 0:
                filled[d] = dim
            dims.append((Atom(after, extent),))
    if filled:
        row.op.operands[0] = ctx.masks.masked(x, filled, number)
    ctx.dims[row.op.results[0]] = tuple(dims)


@bounds("stablehlo.constant")
def number(ctx: BoundedContext, row: Row) -> None:
    """A number that is a size is made at run time."""
    (result,) = row.op.results
    values = [op.attributes["value"] for op in row.ops]
    dims = tuple(map(uniform_dim, row.result()))
    if not all(v.is_splat for v in values):
        if not row.same("value"):
            raise Refused("a table of numbers depends on a dynamic size")
        ctx.dims[result] = dims
        return
    numbers = [ir.DenseElementsAttr(v).get_splat_value().value for v in values]
    if len({repr(n) for n in numbers}) == 1:
        ctx.dims[result] = dims
        return
    scalar = computed_number(ctx.symbols, ctx.value, numbers, build.dtype_of(result))
    ctx.replace(result, build.broadcast_in_dim(scalar, build.shape_of(result), []), dims)
