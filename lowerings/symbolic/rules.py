"""Rules of dynamic programs: each operation in the form whose sizes are values of the program."""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.bounded.alignment import Row
from xla_dynamo.lowerings.bounded.context import allow
from xla_dynamo.lowerings.bounded.extents import Refused, is_dynamic
from xla_dynamo.lowerings.bounded.numbers import computed_number
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE, named
from xla_dynamo.lowerings.symbolic.context import DynamicContext, dynamic_rule

# What is the same operation at all sizes, of other types.
_SAME = ELEMENTWISE | named(
    "batch_norm_inference bitcast_convert complex concatenate convolution count_leading_zeros "
    "dot_general dynamic_update_slice imag optimization_barrier popcnt real reduce "
    "reduce_precision reverse scatter select_and_scatter shift_left "
    "shift_right_arithmetic shift_right_logical sort transpose"
)
_SAME |= named(
    "acos acosh asin asinh atan atanh bessel_i1e conj cosh digamma is_inf is_neg_inf is_pos_inf "
    "lgamma next_after polygamma sinh tan zeta",
    "chlo",
)


@dynamic_rule(*_SAME)
def same(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """The operation as it is, of dynamic types."""
    allow(row)
    ctx.set_types(op, row)


@dynamic_rule("stablehlo.broadcast_in_dim")
def broadcast(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """dynamic_broadcast_in_dim."""
    allow(row)
    result_dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
    for result_dim, before in zip(result_dims, row.operand(0), strict=True):
        if before != row.result()[result_dim] and set(before) != {1}:
            raise Refused("it repeats a dynamic dimension")
    if not any(map(is_dynamic, row.result())):
        return
    type_ = ctx.type(row.result(), op.results[0].type.element_type)
    shape = ctx.vector(row.result())
    stretched = [i for i, n in enumerate(row.operand(0)) if row.result()[result_dims[i]] != n]
    made = hlo.dynamic_broadcast_in_dim(
        type_,
        op.operands[0],
        shape,
        result_dims,
        known_expanding_dimensions=stretched,
        known_nonexpanding_dimensions=[i for i in range(len(result_dims)) if i not in stretched],
    )
    ctx.replace(op, made)


@dynamic_rule("stablehlo.reshape")
def reshape(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """dynamic_reshape."""
    if not any(map(is_dynamic, row.result())):
        return
    type_ = ctx.type(row.result(), op.results[0].type.element_type)
    ctx.replace(op, hlo.dynamic_reshape(type_, op.operands[0], ctx.vector(row.result())))


@dynamic_rule("stablehlo.iota")
def iota(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """dynamic_iota."""
    allow(row)
    type_ = ctx.type(row.result(), op.results[0].type.element_type)
    along = ir.IntegerAttr(op.attributes["iota_dimension"]).value
    ctx.replace(op, hlo.dynamic_iota(type_, ctx.vector(row.result()), along))


@dynamic_rule("stablehlo.constant")
def constant(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """A number of a dynamic shape is broadcast; one that is a size is computed."""
    values = [each.attributes["value"] for each in row.ops]
    if not all(v.is_splat for v in values):
        raise Refused("a table of numbers depends on a dynamic size")
    numbers = [ir.DenseElementsAttr(v).get_splat_value().value for v in values]
    (result,) = op.results
    if len({repr(n) for n in numbers}) == 1:
        type_ = ir.RankedTensorType.get([], result.type.element_type)
        splat = ir.DenseElementsAttr(op.attributes["value"]).get_splat_value()
        scalar = hlo.constant(ir.DenseElementsAttr.get_splat(type_, splat))
    else:
        scalar = computed_number(ctx.symbols, ctx.value, numbers, build.dtype_of(result))
    if any(map(is_dynamic, row.result())):
        made = hlo.dynamic_broadcast_in_dim(
            ctx.type(row.result(), result.type.element_type), scalar, ctx.vector(row.result()), []
        )
    else:
        made = hlo.broadcast_in_dim(result.type, scalar, [])
    ctx.replace(op, made)


@dynamic_rule("stablehlo.slice")
def slice_(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """real_dynamic_slice, where an end is dynamic."""
    allow(row, "start_indices", "limit_indices")
    _check_in_bounds(ctx, row)
    if not row.differing():
        ctx.set_types(op, row)
        return
    bounds = [row.integers(name) for name in ("start_indices", "limit_indices", "strides")]
    type_ = ctx.type(row.result(), op.results[0].type.element_type)
    made = hlo.real_dynamic_slice(type_, op.operands[0], *map(ctx.vector, bounds))
    ctx.replace(op, made)


def _check_in_bounds(ctx: DynamicContext, row: Row) -> None:
    """Raise Refused unless the slice lies in its operand at all sizes, not at the variants' only.

    Eager cuts a slice at the end of its operand, where StableHLO's ends are as written.
    """
    names = ("start_indices", "limit_indices")
    for start, limit, size in zip(*map(row.integers, names), row.operand(0), strict=True):
        first, last, whole = map(ctx.symbols.wanted, (start, limit, size))
        inside = whole.plus(last, -1), first, last.plus(first, -1)
        if not all(map(ctx.is_never_negative, inside)):
            raise Refused("it slices a dynamic dimension where it may have too few elements")


@dynamic_rule("stablehlo.pad")
def pad(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """dynamic_pad, where an amount is dynamic."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    allow(row, *names)
    if not row.differing():
        ctx.set_types(op, row)
        return
    type_ = ctx.type(row.result(), op.results[0].type.element_type)
    amounts = [ctx.vector(row.integers(name)) for name in names]
    ctx.replace(op, hlo.dynamic_pad(type_, *op.operands, *amounts))


@dynamic_rule("stablehlo.gather")
def gather(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """dynamic_gather, where a slice is of a dynamic size."""
    allow(row, "slice_sizes")
    if not row.differing():
        ctx.set_types(op, row)
        return
    type_ = ctx.type(row.result(), op.results[0].type.element_type)
    sizes = ctx.vector(row.integers("slice_sizes"))
    numbers = op.attributes["dimension_numbers"]
    ordered = op.attributes.get("indices_are_sorted", None)
    made = hlo.DynamicGatherOp(*op.operands, sizes, numbers, indices_are_sorted=ordered)
    made.results[0].set_type(type_)
    ctx.replace(op, made.results[0])


@dynamic_rule("stablehlo.dynamic_slice")
def dynamic_slice(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """A dynamic_gather of one slice, where its size is dynamic: it clamps its starts as well."""
    allow(row, "slice_sizes")
    if not row.differing():
        ctx.set_types(op, row)
        return
    x, *starts = op.operands
    index = build.concatenate([build.reshape(start, [1]) for start in starts], 0)
    rank = len(starts)
    numbers = hlo.GatherDimensionNumbers.get(
        offset_dims=list(range(rank)),
        collapsed_slice_dims=[],
        operand_batching_dims=[],
        start_indices_batching_dims=[],
        start_index_map=list(range(rank)),
        index_vector_dim=0,
    )
    made = hlo.DynamicGatherOp(x, index, ctx.vector(row.integers("slice_sizes")), numbers)
    made.results[0].set_type(ctx.type(row.result(), op.results[0].type.element_type))
    ctx.replace(op, made.results[0])


@dynamic_rule("stablehlo.custom_call")
def custom_call(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """The call, with the shapes of its results as operands behind its own."""
    allow(row)
    shapes = [row.result(i) for i in range(len(op.results))]
    if not any(is_dynamic(n) for shape in shapes for n in shape):
        return
    types = [
        ctx.type(shape, result.type.element_type)
        for shape, result in zip(shapes, op.results, strict=True)
    ]
    vectors = [ctx.vector(shape) for shape in shapes]
    first = len(op.operands)
    attributes = {name: op.attributes[name] for name in op.attributes}
    numbers = list(range(first, first + len(vectors)))
    attributes["indices_of_shape_operands"] = ir.Attribute.parse(
        f"dense<{numbers}> : tensor<{len(numbers)}xi64>"
    )
    if any(name.endswith("_layouts") for name in attributes):
        raise Refused("the layouts of its results may depend on a dynamic size")
    made = ir.Operation.create(
        op.name, results=types, operands=[*op.operands, *vectors], attributes=attributes
    )
    ctx.replace(op, *made.results)
