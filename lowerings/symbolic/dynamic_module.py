"""A graph that was lowered at several sizes to one program of dynamic sizes."""

from collections.abc import Iterator, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.bounded.alignment import Alignment, Row, inline_calls, sizes_of
from xla_dynamo.lowerings.bounded.context import allow
from xla_dynamo.lowerings.bounded.extents import Extent, Refused, Symbols, is_dynamic
from xla_dynamo.lowerings.builders.functions import has_uses, update_type
from xla_dynamo.lowerings.builders.operation_names import named
from xla_dynamo.lowerings.symbolic import rules, windows
from xla_dynamo.lowerings.symbolic.context import RULES, DimensionSizes, DynamicContext

assert rules, windows  # they register the rules


def make_dynamic(
    main: func.FuncOp,
    variants: Sequence[func.FuncOp],
    symbols: Symbols,
    highs: Sequence[int | None],
    arguments: Sequence[Sequence[Extent] | None],
) -> None:
    """Change a function, lowered as the first variant is, to one that takes all sizes.

    What depends on a size must be a polynomial of the symbols that has the values of all variants:
    shapes, attributes, numbers. Whatever else differs between variants is refused.

    Args:
        main: the function to change.
        variants: the graph's lowerings, as many as `Symbols.sizes` has numbers.
        symbols: its dynamic dimensions.
        highs: the largest number of each symbol; None for no end.
        arguments: the extents of each argument's dimensions; None for one of static sizes.

    Raises:
        Refused: some operation is not known at other sizes. Its `location` tells the node.
    """
    for function in (main, *variants):
        inline_calls(function)
    aligned = Alignment([main, *variants])
    sources = _sources(main, symbols, arguments)
    ctx = DynamicContext(symbols, highs, DimensionSizes(sources, main.entry_block), aligned)
    _make_arguments_dynamic(ctx, main, variants, arguments)
    _make_all_dynamic(ctx, aligned, aligned.rows())
    for op in reversed(ctx.replaced):
        assert not has_uses(op)
        op.erase()
    update_type(main)


def _sources(
    main: func.FuncOp, symbols: Symbols, arguments: Sequence[Sequence[Extent] | None]
) -> dict[int, tuple[ir.Value, int]]:
    """An argument and a dimension of it that tell each symbol's value."""
    found: dict[int, tuple[ir.Value, int]] = {}
    for argument, extents in zip(main.entry_block.arguments, arguments, strict=True):
        for dimension, extent in enumerate(extents or ()):
            for number in range(len(symbols.sizes)):
                if extent == Extent.of({(number,): 1}):
                    found.setdefault(number, (argument, dimension))
    if len(found) < len(symbols.sizes):
        raise Refused("a dynamic size is that of no tensor that the program reads")
    return found


def _make_arguments_dynamic(
    ctx: DynamicContext,
    main: func.FuncOp,
    variants: Sequence[func.FuncOp],
    arguments: Sequence[Sequence[Extent] | None],
) -> None:
    rows = zip(*(list(f.entry_block.arguments) for f in variants), strict=True)
    for argument, values, extents in zip(main.entry_block.arguments, rows, arguments, strict=True):
        sizes = list(zip(*(v.type.shape for v in values), strict=True))
        if extents is None:
            if any(map(is_dynamic, sizes)):
                raise Refused("an argument has a dynamic size that is not known")
            continue
        argument.set_type(ctx.type(sizes, argument.type.element_type))


def _make_all_dynamic(ctx: DynamicContext, aligned: Alignment, rows: Iterator[Row]) -> None:
    for both in rows:
        op, row = both.op, Row(both.ops[1:])
        if row.name in ("func.return", "stablehlo.return"):
            return
        try:
            with ir.InsertionPoint(op), op.location:
                if row.name in _BRANCHES:
                    _make_branches_dynamic(ctx, aligned, both)
                else:
                    aligned.check_regions(both)
                    _make_op_dynamic(ctx, op, row)
        except Refused as refusal:
            if refusal.location:
                raise  # of an operation in a region
            raise Refused(f"{row.name}: {refusal}", str(op.location)) from refusal


_BRANCHES = named("case if while")


def _make_branches_dynamic(ctx: DynamicContext, aligned: Alignment, both: Row) -> None:
    """Give a branch or a loop, and what is in it, dynamic sizes."""
    op, row = both.op, Row(both.ops[1:])
    allow(row)
    for blocks in aligned.blocks(both):
        inner = aligned.rows_of(blocks)
        for number, argument in enumerate(blocks[0].arguments):
            sizes = sizes_of([block.arguments[number] for block in blocks[1:]])
            argument.set_type(ctx.type(sizes, argument.type.element_type))
        with ctx.inside():
            _make_all_dynamic(ctx, aligned, inner)
    ctx.set_types(op, row)


def _make_op_dynamic(ctx: DynamicContext, op: ir.Operation, row: Row) -> None:
    """Give an operation dynamic sizes, by its rule if it has one."""
    operands = [row.operand(i) for i in range(len(op.operands))]
    results = [row.result(i) for i in range(len(op.results))]
    varies = any(is_dynamic(n) for shape in (*operands, *results) for n in shape)
    if not varies and not row.differing():
        return
    rule = RULES.get(row.name)
    if rule is None:
        raise Refused("it is not known how it treats dynamic dimensions")
    rule(ctx, op, row)
