"""Compute on images [batch, *spatial, channels] between library calls, not on their transposes.

The calls of oneDNN and torch take and return such images, between transposes to and from torch's
[batch, channels, *spatial] (`xla_dynamo/kernels/library_calls.py`). XLA moves a transpose through
elementwise operations, but copies images for reductions, windows and reshapes. The pass moves each
transpose through the operations that use it, as far as it can, so that it meets its inverse.
"""

from collections.abc import Callable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import permuted_type
from xla_dynamo.lowerings.builders.functions import has_uses, main_of, operations_of
from xla_dynamo.lowerings.builders.operation_names import ELEMENTWISE
from xla_dynamo.lowerings.builders.shapes import transpose
from xla_dynamo.lowerings.builders.strides import channels_last
from xla_dynamo.lowerings.builders.values import Value, rank_of, shape_of, source_of
from xla_dynamo.lowerings.kernels import kernel_of
from xla_dynamo.lowerings.passes.permuted_operations import (
    WINDOWED,
    Permutation,
    clone_with,
    gathered_dimension,
    identity,
    integer_array,
    integers,
    merged_dimensions,
    permuted_attributes,
    permuted_gather_attributes,
)
from xla_dynamo.lowerings.target import Target
from xla_dynamo.torch_private import invert_perm


def put_channels_last(module: ir.Module, target: Target) -> None:
    """Move transposes of images through their users, if `main` calls a library on images.

    Assumes that library calls stand between transposes, and leaves those where an operation has no
    rule here. Leaves alone what is nested in regions, and the functions beside `main`.
    """
    main = main_of(module)
    ops = operations_of(main)
    if not any(map(_takes_images, ops)):
        return
    rewriter = _Rewriter()
    for op in ops:
        rewriter.visit(op)
    _erase_unused(main, rewriter.replaced)


def _erase_unused(main: func.FuncOp, replaced: set[ir.Operation]) -> None:
    """Erase the operations that have no users any more."""
    for op in reversed(operations_of(main)):
        is_pure = op in replaced or op.name in (
            "stablehlo.transpose",
            "stablehlo.broadcast_in_dim",
        )
        if is_pure and not has_uses(op):
            op.erase()


class _Rewriter:
    """Moves transposes through one operation after another, from the first to the last.

    A rule takes an operation and the permutation by which its operands, transposed, are values that
    are computed now. It clones the operation for those, and transposes the clone's result back.

    Attributes:
        transposed: the results of the transposes that may be moved through their users.
        replaced: the operations that have a clone.
    """

    def __init__(self) -> None:
        self.transposed: set[Value] = set()
        self.replaced: set[ir.Operation] = set()

    def visit(self, op: ir.Operation) -> None:
        """Move the transpose of an operand through an operation, if there is a rule."""
        operand = next((v for v in op.operands if v in self.transposed), None)
        with ir.InsertionPoint(op), op.location:
            if operand is not None and (rule := self._rule(op)) is not None:
                rule(op, invert_perm(source_of(operand)[1]))
            elif _makes_channels_first(op):
                self.transposed.add(op.results[0])

    def _rule(self, op: ir.Operation) -> Callable[[ir.Operation, Permutation], None] | None:
        if len(op.results) > 1:
            return None
        if op.name in ELEMENTWISE:
            return self._elementwise
        if op.name in WINDOWED:
            return self._window
        return {
            "stablehlo.concatenate": self._concatenate,
            "stablehlo.gather": self._gather,
            "stablehlo.reduce": self._reduce,
            "stablehlo.reshape": self._reshape,
            "stablehlo.reverse": self._reverse,
            "stablehlo.transpose": self._transpose,
        }.get(op.name)

    def _replace(self, old: Value, new: Value, permutation: Permutation) -> None:
        """Give the users of `old` a transpose of `new`, which is `old` under this permutation."""
        self.replaced.add(old.owner.operation)
        if permutation == identity(len(permutation)):
            old.replace_all_uses_with(new)
            return
        back = hlo.transpose(new, invert_perm(permutation))
        old.replace_all_uses_with(back)
        self.transposed.add(back)

    def _clone(
        self,
        op: ir.Operation,
        operands: Sequence[Value],
        permutation: Permutation,
        changed: dict[str, ir.Attribute],
    ) -> None:
        """Replace an operation by a clone on these operands, whose result is permuted."""
        type_ = permuted_type(op.results[0].type, permutation)
        new = clone_with(op, operands, [type_], changed)
        self._replace(op.results[0], new.results[0], permutation)

    # --- rules -----------------------------------------------------------------------------------

    def _elementwise(self, op: ir.Operation, permutation: Permutation) -> None:
        operands = [transpose(v, permutation) if rank_of(v) else v for v in op.operands]
        self._clone(op, operands, permutation, {})

    def _window(self, op: ir.Operation, permutation: Permutation) -> None:
        operands = [transpose(v, permutation) if rank_of(v) else v for v in op.operands]
        self._clone(op, operands, permutation, permuted_attributes(op, permutation))

    def _concatenate(self, op: ir.Operation, permutation: Permutation) -> None:
        dim = permutation.index(ir.IntegerAttr(op.attributes["dimension"]).value)
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        operands = [transpose(v, permutation) for v in op.operands]
        self._clone(op, operands, permutation, {"dimension": number})

    def _gather(self, op: ir.Operation, permutation: Permutation) -> None:
        """An `index_select` along one dimension; the indices have no dimension of the image."""
        dim = gathered_dimension(op)
        if dim is None or op.operands[0] not in self.transposed:
            return
        operands = [transpose(op.operands[0], permutation), op.operands[1]]
        changed = permuted_gather_attributes(op, permutation.index(dim), permutation)
        self._clone(op, operands, permutation, changed)

    def _reverse(self, op: ir.Operation, permutation: Permutation) -> None:
        dims = integer_array([permutation.index(dim) for dim in integers(op, "dimensions")])
        self._clone(op, [transpose(op.operands[0], permutation)], permutation, {"dimensions": dims})

    def _reduce(self, op: ir.Operation, permutation: Permutation) -> None:
        """The dimensions that are not reduced keep their relative order in the result."""
        dims = integers(op, "dimensions")
        kept = [dim for dim in permutation if dim not in dims]
        x = transpose(op.operands[0], permutation)
        over = integer_array(sorted(permutation.index(dim) for dim in dims))
        left = [sorted(kept).index(dim) for dim in kept]
        self._clone(op, [x, op.operands[1]], left, {"dimensions": over})

    def _transpose(self, op: ir.Operation, permutation: Permutation) -> None:
        """A transpose of a transpose is one of the source, or the source itself."""
        source, first = source_of(op.operands[0])
        composed = [first[dim] for dim in integers(op, "permutation")]
        self._replace(op.results[0], source, invert_perm(composed))

    def _reshape(self, op: ir.Operation, permutation: Permutation) -> None:
        """A reshape that splits dimensions, or merges some that are neighbours in the source."""
        (x,), (result,) = op.operands, op.results
        groups = merged_dimensions(list(shape_of(x)), list(shape_of(result)))
        runs = [[permutation.index(dim) for dim in dims] for dims, _ in groups]
        if not groups or any(run != list(range(run[0], run[0] + len(run))) for run in runs):
            return
        sequence = sorted(range(len(runs)), key=runs.__getitem__)
        permutation = [dim for group in sequence for dim in groups[group][1]]
        new = hlo.reshape(permuted_type(result.type, permutation), source_of(x)[0])
        self._replace(result, new, permutation)


def _takes_images(op: ir.Operation) -> bool:
    """Whether an operation is a call of a library on images."""
    kernel = kernel_of(op)
    return kernel is not None and kernel.takes_images


def _makes_channels_first(op: ir.Operation) -> bool:
    """Whether an operation is a transpose that makes the last dimension the second one."""
    if op.name != "stablehlo.transpose":
        return False
    permutation = integers(op, "permutation")
    return len(permutation) > 2 and permutation == invert_perm(channels_last(len(permutation)))
