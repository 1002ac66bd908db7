"""Read several lowerings of one graph in step: the operations that differ in sizes alone."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.bounded.extents import Refused, Sizes
from xla_dynamo.lowerings.builders.functions import rebind
from xla_dynamo.lowerings.builders.values import shape_of


class Row:
    """One operation of the graph, as it stands in each variant of the program.

    Attributes:
        ops: the operation in each variant; the first is that of the program that runs.
    """

    def __init__(self, ops: Sequence[ir.Operation]) -> None:
        self.ops = list(ops)

    @property
    def op(self) -> ir.Operation:
        """The operation of the program that runs."""
        return self.ops[0]

    @property
    def name(self) -> str:
        """The operation's name, as in "stablehlo.add"."""
        return str(self.op.name)

    def operand(self, number: int) -> list[Sizes]:
        """The sizes of an operand's dimensions."""
        return sizes_of([op.operands[number] for op in self.ops])

    def result(self, number: int = 0) -> list[Sizes]:
        """The sizes of a result's dimensions."""
        return sizes_of([op.results[number] for op in self.ops])

    def integers(self, name: str) -> list[Sizes]:
        """The elements of an attribute that is a list of integers."""
        return list(
            zip(*(list(ir.DenseI64ArrayAttr(op.attributes[name])) for op in self.ops), strict=True)
        )

    def same(self, name: str) -> bool:
        """Whether an attribute is the same in all variants."""
        first, *others = (op.attributes[name] for op in self.ops)
        return all(other == first for other in others)

    def differing(self) -> set[str]:
        """The names of the attributes that differ."""
        return {name for name in self.op.attributes if not self.same(name)}


def sizes_of(values: Sequence[ir.Value]) -> list[Sizes]:
    """The sizes of a value's dimensions, of its variants."""
    return list(zip(*map(shape_of, values), strict=True))


def _rank(value: ir.Value) -> int | None:
    return getattr(value.type, "rank", None)


class Alignment:
    """Which values of the variants are the same value of the graph."""

    def __init__(self, functions: Sequence[func.FuncOp]) -> None:
        self._functions = list(functions)
        self._numbers: list[dict[ir.Value, int]] = [{} for _ in functions]
        self._count = 0
        for arguments in self._together([list(f.entry_block.arguments) for f in functions]):
            self._note(arguments)

    def rows(self) -> Iterator[Row]:
        """The operations, one after another.

        Raises:
            Refused: the variants have other operations, or operands in another order.
        """
        listed = [[op.operation for op in f.entry_block.operations] for f in self._functions]
        yield from self._rows(listed)

    def _rows(self, listed: Sequence[Sequence[ir.Operation]]) -> Iterator[Row]:
        # Of other lengths, too: where they part, `_check` tells the operation.
        for ops in zip(*listed, strict=False):
            row = Row(ops)
            self._check(ops)
            for results in self._together([list(op.results) for op in ops]):
                self._note(results)
            yield row

    def blocks(self, row: Row) -> Iterator[tuple[ir.Block, ...]]:
        """The blocks of an operation's regions, as they stand in each variant."""
        for regions in self._together([list(op.regions) for op in row.ops]):
            yield from self._together([list(r.blocks) for r in regions])

    def rows_of(self, blocks: Sequence[ir.Block]) -> Iterator[Row]:
        """The operations of one block, as `rows` gives those of the functions."""
        for arguments in self._together([list(b.arguments) for b in blocks]):
            self._note(arguments)
        listed = [[op.operation for op in b.operations] for b in blocks]
        yield from self._rows(listed)

    def replaced(self, old: ir.Value, new: ir.Value) -> None:
        """Take a value of the first variant for another one."""
        self._numbers[0][new] = self._numbers[0][old]

    def check_regions(self, row: Row) -> None:
        """Raise Refused unless the regions are the same in all variants, sizes included."""
        for blocks in self.blocks(row):
            for arguments in self._together([list(b.arguments) for b in blocks]):
                self._note_static(arguments)
            for ops in self._together([[o.operation for o in b.operations] for b in blocks]):
                self._check(ops)
                inner = Row(ops)
                if inner.differing() or inner.name == "func.call":
                    raise Refused("a number in its body depends on a dynamic size")
                self.check_regions(inner)
                for results in self._together([list(op.results) for op in ops]):
                    self._note_static(results)

    def _check(self, ops: Sequence[ir.Operation]) -> None:
        names = {
            (op.name, tuple(sorted(op.attributes)), tuple(map(_rank, op.results))) for op in ops
        }
        if len(names) > 1:
            raise Refused("the program has other operations at other sizes", str(ops[0].location))
        for operands in self._together([list(op.operands) for op in ops]):
            known = {numbers.get(v) for numbers, v in zip(self._numbers, operands, strict=True)}
            if len(known) > 1 or None in known:
                raise Refused("the program has other operands at other sizes", str(ops[0].location))

    def _note_static(self, values: Sequence[ir.Value]) -> None:
        if any(v.type != values[0].type for v in values):
            raise Refused("its body has values with a dynamic dimension")
        self._note(values)

    def _note(self, values: Sequence[ir.Value]) -> None:
        for numbers, value in zip(self._numbers, values, strict=True):
            numbers[value] = self._count
        self._count += 1

    def _together(self, lists: Sequence[list[Any]]) -> Iterator[tuple[Any, ...]]:
        if len({len(each) for each in lists}) > 1:
            raise Refused("the program has other operations at other sizes")
        return zip(*lists, strict=True)


def inline_calls(function: func.FuncOp, env: MutableMapping[Any, Any] | None = None) -> None:
    """Put the bodies of the module's functions where the function calls them.

    Values of `env` that were results of a call become those of the body.
    """
    module = function.operation.parent
    bodies = {
        op.name.value: op
        for op in module.regions[0].blocks[0].operations
        if isinstance(op, func.FuncOp)
    }
    todo: list[func.CallOp] = []

    def visit(op: ir.Operation) -> ir.WalkResult:  # also those in branches and loops
        if op.name == "func.call":
            todo.append(op.opview)
        return ir.WalkResult.ADVANCE

    function.operation.walk(visit)
    names: dict[ir.Value, list[Any]] = {}
    for node, value in (env or {}).items():
        if isinstance(value, ir.Value):
            names.setdefault(value, []).append(node)
    while todo:
        call = todo.pop()
        body = bodies[ir.FlatSymbolRefAttr(call.operation.attributes["callee"]).value].entry_block
        known = dict(zip(body.arguments, call.operands, strict=True))
        for op in body.operations:
            if op.operation.name == "func.return":
                for result, value in zip(call.results, op.operands, strict=True):
                    new = known.get(value, value)
                    result.replace_all_uses_with(new)
                    if env is not None and (nodes := names.pop(result, None)):
                        env.update(dict.fromkeys(nodes, new))
                        names.setdefault(new, []).extend(nodes)
                break
            copy = op.operation.clone(ip=ir.InsertionPoint(call))
            copy.location = call.operation.location  # which names the node of the graph
            rebind(copy, known)
            known.update(zip(op.results, copy.results, strict=True))
            if copy.name == "func.call":
                todo.append(copy.opview)
        call.operation.erase()
