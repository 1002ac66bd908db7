"""Compute matrix products on [batch, sequence, ...], not on reshapes that merge these dimensions.

`linear` on [batch, sequence, features] reaches us as a reshape to [batch * sequence, features], a
product and a reshape back, attention by `bmm` as products on [batch * heads, ...]. A partitioner
loses how batch and sequence are sharded in a merged dimension. The pass moves each reshape that
merges dimensions through the operations that use it, as far as it can, so that it meets the reshape
that splits them again.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.functions import has_uses
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE, named
from xla_dynamo.lowerings.builders.values import Value, defining_name, rank_of, shape_of
from xla_dynamo.lowerings.passes.merged_values import MergedValues, reshape, with_shape
from xla_dynamo.lowerings.passes.permuted_operations import clone_with, integer_array, integers
from xla_dynamo.lowerings.passes.splits import (
    ProductDimensions,
    Split,
    common_split,
    decided,
    is_merged,
    is_single,
    split_dimensions,
    split_of_reshape,
    split_shape,
    split_slice,
)
from xla_dynamo.lowerings.target import Target

_BY_ELEMENT = ELEMENTWISE | named("complex imag optimization_barrier real")
# What may be erased where nothing uses it any more, besides what was replaced.
_PURE = _BY_ELEMENT | named("broadcast_in_dim constant iota reshape transpose")
# The regions of these compute with single numbers.
_FOLDING = named("all_reduce map reduce reduce_window scatter select_and_scatter sort")


def unmerge_products(module: ir.Module, target: Target) -> None:
    """Move reshapes that merge dimensions through products and what stands between them.

    Assumes nothing of the module: each rewrite computes the same elements, and only the order of a
    sum's terms may be another. Leaves the types of arguments and results, reshapes without elements
    or of dynamic sizes, and an operation where its operands disagree on how a dimension splits. A
    product's other factor is split where `_Rewriter._splits_the_other` says so.
    """
    for block in _blocks(module.operation):
        rewriter = _Rewriter()
        ops = list(block.operations)
        for op in ops:
            rewriter.visit(op.operation)
        for op in reversed(list(block.operations)):
            _erase_unused(op.operation, rewriter.replaced)


def _blocks(op: ir.Operation) -> Iterator[ir.Block]:
    """The blocks of an operation's regions, outer ones first; not those that fold numbers."""
    for region in op.regions:
        for block in region.blocks:
            yield block
            for inner in block.operations:
                if inner.operation.name not in _FOLDING:
                    yield from _blocks(inner.operation)


def _erase_unused(op: ir.Operation, replaced: set[ir.Operation]) -> None:
    if (op in replaced or op.name in _PURE) and not has_uses(op):
        op.erase()


class _Rewriter:
    """Moves merging reshapes through one operation of a block after another, from first to last.

    A rule clones an operation on split operands, and merges the clone's result by a reshape. What
    uses this reshape has its turn later, and what does not is left with the types that it had.

    Attributes:
        values: what is known of the block's values.
        replaced: the operations that have a clone.
    """

    def __init__(self) -> None:
        self.values = MergedValues()
        self.replaced: set[ir.Operation] = set()

    def visit(self, op: ir.Operation) -> None:
        """Move the merging reshapes of operands through an operation, if there is a rule."""
        rule = self._rule(op)
        if rule is None or len(op.results) != 1 or not _are_static([*op.operands, *op.results]):
            return
        with ir.InsertionPoint(op), op.location:
            rule(op)

    def _rule(self, op: ir.Operation) -> Callable[[ir.Operation], None] | None:
        if op.name in _BY_ELEMENT:
            return self._elementwise
        return {
            "stablehlo.broadcast_in_dim": self._broadcast,
            "stablehlo.concatenate": self._concatenate,
            "stablehlo.dot_general": self._dot_general,
            "stablehlo.reduce": self._reduce,
            "stablehlo.reshape": self._reshape,
            "stablehlo.slice": self._slice,
            "stablehlo.transpose": self._transpose,
        }.get(op.name)

    def _replace(self, op: ir.Operation, new: Value, split: Split) -> None:
        """Give the users of an operation a value that is split so, merged by a reshape."""
        (old,) = op.results
        merged = reshape(new, shape_of(old))
        old.replace_all_uses_with(merged)
        self.replaced.add(op)
        if merged != new:
            self.values.sources[merged] = new, split

    def _clone(
        self,
        op: ir.Operation,
        operands: Sequence[tuple[Value, Split]],
        split: Split,
        changed: dict[str, ir.Attribute],
    ) -> None:
        """Replace an operation by a clone on these operands, split so, with such a result."""
        type_ = with_shape(op.results[0].type, split_shape(split))
        inputs = [self.values.split(value, wanted) for value, wanted in operands]
        self._replace(op, clone_with(op, inputs, [type_], changed).results[0], split)

    # --- rules -----------------------------------------------------------------------------------

    def _reshape(self, op: ir.Operation) -> None:
        """A reshape of a merging one is a reshape of its source, or the source itself."""
        (x,), (result,) = op.operands, op.results
        source, _ = self.values.sources.get(x, (x, None))
        op.operands[0] = source
        if source.type == result.type:
            result.replace_all_uses_with(source)
            return
        split = split_of_reshape(shape_of(source), shape_of(result))
        if is_merged(split):
            self.values.sources[result] = source, split

    def _elementwise(self, op: ir.Operation) -> None:
        """Operands of one shape, besides scalars, such as the condition of a `select`.

        Of matrices all must be split alike: others may be weights, or an optimizer's state. Stacks
        of matrices are activations, whose first dimension is split if it is in one operand.
        """
        (result,) = op.results
        given = [self.values.wishes(v) for v in op.operands if rank_of(v) == rank_of(result)]
        by_dim = list(zip(*given, strict=True))
        if len(by_dim) > 2 and is_merged(by_dim[0]):
            by_dim[0] = tuple(None if is_single(sizes) else sizes for sizes in by_dim[0])
        wishes = list(map(common_split, by_dim))
        if is_merged(wishes):
            split = decided(wishes, shape_of(result))
            self._replace(op, self.values.elementwise(op, split), split)
        elif None in wishes:
            self.values.computed[result] = wishes

    def _broadcast(self, op: ir.Operation) -> None:
        split = decided(self.values.wishes(op.results[0]), shape_of(op.results[0]))
        if is_merged(split):
            self._replace(op, self.values.split(op.results[0], split), split)

    def _transpose(self, op: ir.Operation) -> None:
        split = self.values.split_of(op.operands[0])
        if is_merged(split):
            parts, permutation = split_dimensions(split), integers(op, "permutation")
            turned = integer_array([part for dim in permutation for part in parts[dim]])
            result = tuple(split[dim] for dim in permutation)
            self._clone(op, [(op.operands[0], split)], result, {"permutation": turned})

    def _reduce(self, op: ir.Operation) -> None:
        """All dimensions that were merged into a reduced one are reduced."""
        x, start = op.operands
        split = self.values.split_of(x)
        if is_merged(split):
            parts, dims = split_dimensions(split), integers(op, "dimensions")
            over = integer_array([part for dim in sorted(dims) for part in parts[dim]])
            result = tuple(sizes for dim, sizes in enumerate(split) if dim not in dims)
            self._clone(op, [(x, split), (start, ())], result, {"dimensions": over})

    def _slice(self, op: ir.Operation) -> None:
        """Dimensions of which all is taken stay split."""
        x, (result,) = op.operands[0], op.results
        each = zip(self.values.split_of(x), shape_of(x), shape_of(result), strict=True)
        wishes = [sizes if n == taken else None for sizes, n, taken in each]
        if is_merged(wishes):
            split = decided(wishes, shape_of(x))
            changed = split_slice(op, split)
            self._clone(op, [(x, split)], decided(wishes, shape_of(result)), changed)

    def _concatenate(self, op: ir.Operation) -> None:
        """The other dimensions are split as in all operands."""
        dim, (result,) = ir.IntegerAttr(op.attributes["dimension"]).value, op.results
        given = [self.values.wishes(operand) for operand in op.operands]
        wishes = [common_split(of_one) for of_one in zip(*given, strict=True)]
        wishes[dim] = None
        if is_merged(wishes):
            part = split_dimensions(decided(wishes, shape_of(result)))[dim][0]
            number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), part)
            operands = [(v, decided(wishes, shape_of(v))) for v in op.operands]
            self._clone(op, operands, decided(wishes, shape_of(result)), {"dimension": number})

    def _dot_general(self, op: ir.Operation) -> None:
        """A product over or of split dimensions, in the same sequence in both factors."""
        dims, (x, y) = ProductDimensions(op), op.operands
        left, right = self.values.wishes(x), self.values.wishes(y)
        for i, j in dims.pairs:
            if is_single(left[i]) and self._splits_the_other(y, j, dims.batch[1]):
                left[i] = None
            if is_single(right[j]) and self._splits_the_other(x, i, dims.batch[0]):
                right[j] = None
            left[i] = right[j] = common_split([left[i], right[j]])
        splits = decided(left, shape_of(x)), decided(right, shape_of(y))
        if is_merged(itertools.chain(*splits)):
            changed = {"dot_dimension_numbers": dims.split_numbers(splits)}
            factors = [(x, splits[0]), (y, splits[1])]
            self._clone(op, factors, dims.result_split(splits), changed)

    def _splits_the_other(self, x: Value, dim: int, batch: Sequence[int]) -> bool:
        """Whether the other factor is split where only this one has a merged dimension.

        A batch dimension is, unless the merge only repeats elements, as for heads that share keys.
        A contracted one is if it is the first: then rows are, of the gradient of a weight. If it
        is a later one, features are, and the other factor is a weight, which stays as it is.
        """
        if not is_merged([self.values.wishes(x)[dim]]):
            return False
        if dim in batch:
            source, _ = self.values.sources.get(x, (x, None))
            return defining_name(source) != "stablehlo.broadcast_in_dim"
        return dim == min(d for d in range(rank_of(x)) if d not in batch)


def _are_static(values: Sequence[Value]) -> bool:
    return all(isinstance(v.type, ir.RankedTensorType) and v.type.has_static_shape for v in values)
