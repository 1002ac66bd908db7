"""Make a program that was lowered at upper bounds of its dynamic sizes right at all sizes below."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.bounded import contractions, elements, kernel_calls, scatters
from xla_dynamo.lowerings.bounded.alignment import Alignment, Row, inline_calls
from xla_dynamo.lowerings.bounded.context import RULES, BoundedContext, all_static
from xla_dynamo.lowerings.bounded.dimensions import (
    Atom,
    Dim,
    Dims,
    dim_sizes,
    is_free,
    simplified,
    static_dim,
)
from xla_dynamo.lowerings.bounded.extents import (
    Parts,
    Refused,
    RunTimeSizes,
    Sizes,
    Symbols,
    is_dynamic,
)
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.functions import has_uses

_RULES = contractions, elements, kernel_calls, scatters  # they register themselves


def bound_sizes(
    functions: Sequence[func.FuncOp],
    symbols: Symbols,
    run_time: int,
    inputs: Sequence[Sequence[Parts] | None],
    env: MutableMapping[Any, Any],
) -> Callable[[ir.Value], Dims]:
    """Change the first of these functions, which must be one graph's in several variants.

    An array at the bounds has padding behind the elements of the graph, and the values of the
    padding are arbitrary. An operation that combines several elements, such as a sum, gets a mask
    that keeps the padding out. A number that is a dynamic dimension's size is computed at run time.

    Args:
        functions: the graph's lowerings.
        symbols: its dynamic dimensions.
        run_time: the number of the argument that has the symbols' values, i32[symbols].
        inputs: the parts of each argument's dimensions; None for one of static sizes.
        env: values of the first function; those of operations that go are replaced.

    Returns:
        What is known of the dimensions of a value that the first function had.

    Raises:
        Refused: some operation is not known to be right at other sizes.
    """
    for function in functions:
        inline_calls(function, env if function is functions[0] else None)
    main = functions[0]
    aligned = Alignment(functions)
    sizes = RunTimeSizes(main.entry_block.arguments[run_time], main.entry_block)
    ctx = BoundedContext(symbols, sizes, aligned)
    _note_arguments(ctx, functions, inputs)
    for row in aligned.rows():
        if row.name == "func.return":
            break
        try:
            with ir.InsertionPoint(row.op), row.op.location:
                _read(ctx, aligned, row)
        except Refused as refusal:
            raise Refused(f"{row.name}: {refusal}", str(row.op.location)) from refusal
    dims = dict(ctx.dims)
    for op in reversed([op.operation for op in main.entry_block.operations]):
        if op.name in _REPLACED and not has_uses(op):
            op.erase()
    return lambda value: dims[value]


_REPLACED = ("stablehlo.constant", "stablehlo.slice", "stablehlo.concatenate")


def _note_arguments(
    ctx: BoundedContext,
    functions: Sequence[func.FuncOp],
    inputs: Sequence[Sequence[Parts] | None],
) -> None:
    arguments = [list(f.entry_block.arguments) for f in functions]
    for parts, *values in zip(inputs, *arguments, strict=True):
        sizes = list(zip(*map(build.shape_of, values), strict=True))
        dims = all_static(sizes)
        if parts is not None:
            dims = tuple(
                _dim(ctx, s, of_one) if is_dynamic(s) else static_dim(s)
                for s, of_one in zip(sizes, parts, strict=True)
            )
        elif any(map(is_dynamic, sizes)):
            raise Refused("an argument has a dynamic size that is not known")
        for dim, of_one in zip(dims, sizes, strict=True):
            assert dim_sizes(dim) == of_one
        ctx.dims[values[0]] = dims


def _dim(ctx: BoundedContext, sizes: Sizes, parts: Parts) -> Dim:
    if len(parts) == 1:
        return (Atom(sizes, parts[0]),)
    variants = list(zip(*ctx.symbols.sizes, strict=True))
    each = [(part, tuple(part.at(variant) for variant in variants)) for part in parts]
    return simplified([Atom(s, part if is_dynamic(s) else None) for part, s in each])


def _captured(op: ir.Operation) -> Iterator[ir.Value]:
    """The operands of the operations in the regions of one, those from outside included."""
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                yield from inner.operation.operands
                yield from _captured(inner.operation)


def _read(ctx: BoundedContext, aligned: Alignment, row: Row) -> None:
    """Note the dimensions of an operation's results, by its rule if a dimension is dynamic."""
    operands = [ctx.dims[value] for value in row.op.operands]
    results = [row.result(i) for i in range(len(row.op.results))]
    free = any(is_free(dim) for dims in operands for dim in dims)
    free = free or any(is_dynamic(sizes) for of_one in results for sizes in of_one)
    aligned.check_regions(row)
    if any(is_free(dim) for value in _captured(row.op) for dim in ctx.dims.get(value, ())):
        raise Refused("its body reads a value with a dynamic dimension")
    if not free and not row.differing():
        for result, sizes in zip(row.op.results, results, strict=True):
            ctx.dims[result] = all_static(sizes)
        return
    rule = RULES.get(row.name)
    if rule is None:
        raise Refused("it is not known how it treats dynamic dimensions")
    rule(ctx, row)
    for result, sizes in zip(row.op.results, results, strict=True):
        if [dim_sizes(dim) for dim in ctx.dims[result]] != sizes:
            raise Refused("its dynamic dimensions are not followed")
