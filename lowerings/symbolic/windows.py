"""The rule of dynamic programs for windows whose size is dynamic, as those of running sums are."""

import itertools
from collections.abc import Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.bounded.alignment import Row
from xla_dynamo.lowerings.bounded.context import allow
from xla_dynamo.lowerings.bounded.contractions import paddings_of
from xla_dynamo.lowerings.bounded.extents import Sizes
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.symbolic.context import DynamicContext, dynamic_rule

# StableHLO has no such operation. This call is what JAX writes, and what StableHLO's own pass makes
# a reduce_window of when shapes are refined.
TARGET = "stablehlo.dynamic_reduce_window"


@dynamic_rule("stablehlo.reduce_window")
def reduce_window(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """A call of TARGET, where a window or its padding is dynamic."""
    allow(row, "window_dimensions", "padding")
    if not row.differing():
        ctx.set_types(op, row)
        return
    rank = len(row.operand(0))
    pads = [list(itertools.chain(*paddings_of(each))) for each in row.ops]
    vectors = [
        ctx.vector(row.integers("window_dimensions")),
        *(ctx.vector(_integers(row, name, rank)) for name in _OTHERS),
        build.reshape(ctx.vector(list(zip(*pads, strict=True))), [rank, 2]),
    ]
    results = [
        ctx.type(row.result(i), result.type.element_type) for i, result in enumerate(op.results)
    ]
    attributes = {
        "call_target_name": ir.StringAttr.get(TARGET),
        "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
        "called_computations": ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(_function(op))]),
    }
    made = ir.Operation.create(
        "stablehlo.custom_call",
        results=results,
        operands=[*op.operands, *vectors],
        attributes=attributes,
    )
    ctx.replace(op, *made.results)


_OTHERS = ("window_strides", "base_dilations", "window_dilations")


def _integers(row: Row, name: str, rank: int) -> Sequence[Sizes]:
    return row.integers(name) if name in row.op.attributes else [(1,) * len(row.ops)] * rank


def _function(op: ir.Operation) -> str:
    """Add a function with the body of an operation to its module; returns its name."""
    (body,) = op.regions[0].blocks
    main = op.parent
    module = main.parent
    names = {
        ir.StringAttr(each.attributes["sym_name"]).value
        for each in module.regions[0].blocks[0].operations
    }
    name = next(n for n in (f"reduce_window_body_{i}" for i in itertools.count()) if n not in names)
    types = [argument.type for argument in body.arguments]
    with ir.InsertionPoint(main):
        function = func.FuncOp(name, (types, types[: len(types) // 2]), visibility="private")
    known = dict(zip(body.arguments, function.add_entry_block().arguments, strict=True))
    with ir.InsertionPoint(function.entry_block):
        for inner in body.operations:
            operands = [known[operand] for operand in inner.operands]
            if inner.operation.name == "stablehlo.return":
                func.ReturnOp(operands)
                break
            copy = inner.operation.clone()
            for number, operand in enumerate(operands):
                copy.operands[number] = operand
            known.update(zip(inner.operation.results, copy.results, strict=True))
    return name
