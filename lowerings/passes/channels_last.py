"""Images with the channels as their last dimension, from one call of a library to the next.

The calls of oneDNN and torch take and give images [batch, *spatial, channels], behind and before
transposes (`lowerings/cpu/library_calls.py`). XLA moves a transpose through operations element by
element, but copies images for reductions, windows and reshapes. So the module is written anew: what
is between the calls computes on these, where a value is known to be the transpose of another.
"""

from collections.abc import Callable, Sequence

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import type_in_order
from xla_dynamo.lowerings.builders.functions import has_uses, main_of
from xla_dynamo.lowerings.builders.shapes import transpose
from xla_dynamo.lowerings.builders.strides import channels_last
from xla_dynamo.lowerings.builders.values import source_of
from xla_dynamo.lowerings.passes.permuted_operations import (
    ELEMENTWISE,
    WINDOWED,
    Order,
    Value,
    array,
    attributes_in_order,
    gather_in_order,
    gathered_dimension,
    identity,
    merged_dimensions,
    numbers,
    rewritten,
)
from xla_dynamo.lowerings.target import Target
from xla_dynamo.torch_private import invert_perm

# What the configuration of such a call has in it.
_ON_IMAGES = ("onednn_conv_config", "weight_gradient")


def put_channels_last(module: ir.Module, target: Target) -> None:
    """Rewrite the body of main, if it calls a library with images."""
    main = main_of(module)
    ops = [op.operation for op in main.entry_block.operations]
    if not any(map(_takes_images, ops)):
        return
    rewriter = _Rewriter()
    for op in ops:
        rewriter.visit(op)
    _erase_unused(main, rewriter.old)


def _erase_unused(main: func.FuncOp, old: set[ir.Operation]) -> None:
    """Take out what nobody reads any more."""
    for op in reversed([op.operation for op in main.entry_block.operations]):
        is_pure = op in old or op.name in ("stablehlo.transpose", "stablehlo.broadcast_in_dim")
        if is_pure and not has_uses(op):
            op.erase()


class _Rewriter:
    """What is known when the operations up to some one are written anew.

    Attributes:
        turned: values that are transposes of those that are computed now.
        old: operations that were written anew.
    """

    def __init__(self) -> None:
        self.turned: set[Value] = set()
        self.old: set[ir.Operation] = set()

    def visit(self, op: ir.Operation) -> None:
        """Write an operation anew, if that saves a transpose."""
        known = next((v for v in op.operands if v in self.turned), None)
        with ir.InsertionPoint(op), op.location:
            if known is not None and (rule := self._rule(op)) is not None:
                rule(op, invert_perm(source_of(known)[1]))
            elif _makes_channels_first(op):
                self.turned.add(op.results[0])

    def _rule(self, op: ir.Operation) -> Callable[[ir.Operation, Order], None] | None:
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

    def _replace(self, old: Value, new: Value, order: Order) -> None:
        """From here on `old`, whose dimensions in this order are those of `new`, is known as it."""
        self.old.add(old.owner.operation)
        if order == identity(len(order)):
            old.replace_all_uses_with(new)
            return
        turned = hlo.transpose(new, invert_perm(order))
        old.replace_all_uses_with(turned)
        self.turned.add(turned)

    def _rewrite(
        self,
        op: ir.Operation,
        operands: Sequence[Value],
        order: Order,
        changed: dict[str, ir.Attribute],
    ) -> None:
        """The same operation on these operands, whose result has its dimensions in this order."""
        new = rewritten(op, operands, [type_in_order(op.results[0].type, order)], changed)
        self._replace(op.results[0], new.results[0], order)

    # --- operations, and the order of an operand's dimensions in what it is a transpose of --------

    def _elementwise(self, op: ir.Operation, order: Order) -> None:
        operands = [transpose(v, order) if v.type.rank else v for v in op.operands]
        self._rewrite(op, operands, order, {})

    def _window(self, op: ir.Operation, order: Order) -> None:
        operands = [transpose(v, order) if v.type.rank else v for v in op.operands]
        self._rewrite(op, operands, order, attributes_in_order(op, order))

    def _concatenate(self, op: ir.Operation, order: Order) -> None:
        dim = order.index(ir.IntegerAttr(op.attributes["dimension"]).value)
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        operands = [transpose(v, order) for v in op.operands]
        self._rewrite(op, operands, order, {"dimension": number})

    def _gather(self, op: ir.Operation, order: Order) -> None:
        """Places along one dimension, which stays where it is."""
        if (dim := gathered_dimension(op)) is None or op.operands[0] not in self.turned:
            return
        operands = [transpose(op.operands[0], order), op.operands[1]]
        self._rewrite(op, operands, order, gather_in_order(op, order.index(dim), order))

    def _reverse(self, op: ir.Operation, order: Order) -> None:
        dims = [order.index(dim) for dim in numbers(op, "dimensions")]
        self._rewrite(op, [transpose(op.operands[0], order)], order, {"dimensions": array(dims)})

    def _reduce(self, op: ir.Operation, order: Order) -> None:
        dims = numbers(op, "dimensions")
        kept = [dim for dim in order if dim not in dims]
        x = transpose(op.operands[0], order)
        over = sorted(order.index(dim) for dim in dims)
        left = [sorted(kept).index(dim) for dim in kept]
        self._rewrite(op, [x, op.operands[1]], left, {"dimensions": array(over)})

    def _transpose(self, op: ir.Operation, order: Order) -> None:
        turned = numbers(op, "permutation")
        source, permutation = source_of(op.operands[0])
        self._replace(op.results[0], source, invert_perm([permutation[dim] for dim in turned]))

    def _reshape(self, op: ir.Operation, order: Order) -> None:
        """Dimensions are split, or merged where they are neighbours in the source too."""
        (x,), (result,) = op.operands, op.results
        groups = merged_dimensions(list(x.type.shape), list(result.type.shape))
        places = [[order.index(dim) for dim in dims] for dims, _ in groups]
        apart = any(there != list(range(there[0], there[0] + len(there))) for there in places)
        if apart or not groups:
            return
        by_place = sorted(range(len(places)), key=places.__getitem__)
        order = [dim for number in by_place for dim in groups[number][1]]
        new = hlo.reshape(type_in_order(result.type, order), source_of(x)[0])
        self._replace(result, new, order)


def _takes_images(op: ir.Operation) -> bool:
    """Whether an operation is a call of a library on images."""
    if op.name != "stablehlo.custom_call":
        return False
    config = str(op.attributes["backend_config"]) if "backend_config" in op.attributes else ""
    return any(name in config for name in _ON_IMAGES)


def _makes_channels_first(op: ir.Operation) -> bool:
    """Whether an operation is a transpose that makes the last dimension the second one."""
    if op.name != "stablehlo.transpose":
        return False
    order = numbers(op, "permutation")
    return len(order) > 2 and order == invert_perm(channels_last(len(order)))
