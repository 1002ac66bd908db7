"""Images with the channels as their last dimension, from one call of a library to the next.

The calls of oneDNN and torch have the channels innermost in memory (`lowerings/library_calls.py`).
XLA's layout assignment keeps that through operations element by element, but copies images for
reductions, windows and reshapes, which it wants row-major. So the module is written anew: calls
take and give row-major images [batch, *spatial, channels], and what is between them computes on
these, where a value is known to be the transpose of another.
"""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func
from jax.extend.mlir.dialects import stablehlo as hlo

Value: TypeAlias = ir.Value
Order: TypeAlias = tuple[int, ...]


def _names(dialect: str, text: str) -> frozenset[str]:
    return frozenset(f"{dialect}.{name}" for name in text.split())


_ELEMENTWISE = _names(
    "stablehlo",
    "abs add and atan2 cbrt ceil clamp compare convert cosine divide exponential "
    "exponential_minus_one floor is_finite log log_plus_one logistic maximum minimum multiply "
    "negate not or power remainder round_nearest_afz round_nearest_even rsqrt select sign sine "
    "sqrt subtract tan tanh xor",
) | _names("chlo", "erf erfc erf_inv square")
# Attributes that have an entry a dimension.
_BY_DIMENSION = {
    "stablehlo.pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
    "stablehlo.slice": ("start_indices", "limit_indices", "strides"),
    "stablehlo.reduce_window": (
        "window_dimensions",
        "window_strides",
        "base_dilations",
        "window_dilations",
    ),
    "stablehlo.select_and_scatter": ("window_dimensions", "window_strides"),
}
_CONVOLUTION = "__onednn$convolution"
_CALLS = (_CONVOLUTION, "xla_dynamo.call")


def put_channels_last(main: func.FuncOp) -> int:
    """Rewrite a function's body; returns how many calls have images with the channels last."""
    ops = [op.operation for op in main.entry_block.operations]
    calls = [op for op in ops if op.name == "stablehlo.custom_call" and _has_images(op)]
    if calls:
        rewriter = _Rewriter()
        for op in ops[ops.index(calls[0]) :]:
            rewriter.visit(op)
        _erase_unused(main, rewriter.old)
    return len(calls)


def _erase_unused(main: func.FuncOp, old: set[ir.Operation]) -> None:
    """Take out what nobody reads any more."""
    for op in reversed([op.operation for op in main.entry_block.operations]):
        is_pure = op in old or op.name in ("stablehlo.transpose", "stablehlo.broadcast_in_dim")
        if is_pure and not any(True for result in op.results for _ in result.uses):
            op.erase()


class _Rewriter:
    """What is known when the operations up to some one are written anew.

    Attributes:
        sources: by value, the value that it is a transpose of, and the permutation.
        old: operations that were written anew.
    """

    def __init__(self) -> None:
        self.sources: dict[Value, tuple[Value, Order]] = {}
        self.old: set[ir.Operation] = set()

    def visit(self, op: ir.Operation) -> None:
        """Write an operation anew, if that saves a transpose."""
        if op.name == "stablehlo.custom_call":
            if _has_images(op):
                self._call(op)
            return
        rule = self._rule(op)
        known = [v for v in op.operands if v in self.sources]
        if rule is None or not known or len(op.results) > 1:
            return
        with ir.InsertionPoint(op), op.location:
            rule(op, self.sources[known[0]][1])

    def _rule(self, op: ir.Operation) -> Callable[[ir.Operation, Order], None] | None:
        if op.name in _ELEMENTWISE:
            return self._elementwise
        if op.name in _BY_DIMENSION:
            return self._window
        return {
            "stablehlo.concatenate": self._concatenate,
            "stablehlo.reduce": self._reduce,
            "stablehlo.reshape": self._reshape,
            "stablehlo.reverse": self._reverse,
            "stablehlo.transpose": self._transpose,
        }.get(op.name)

    # --- values ---------------------------------------------------------------------------------

    def _ordered(self, value: Value, order: Order) -> Value:
        """A value with its dimensions in another order."""
        source, permutation = self.sources.get(value) or _source(value)
        order = tuple(permutation[dim] for dim in order)
        if order == tuple(range(len(order))):
            return source
        op = source.owner
        name = getattr(op, "name", None)
        if name == "stablehlo.broadcast_in_dim":
            return _broadcast(op, order)
        if name == "stablehlo.constant" and op.attributes["value"].is_splat:
            splat = op.attributes["value"].get_splat_value()
            return hlo.constant(ir.DenseElementsAttr.get_splat(_turned_type(source, order), splat))
        return hlo.transpose(source, list(order))

    def _replace(self, old: Value, new: Value, order: Order) -> None:
        """From here on `old`, whose dimensions in this order are those of `new`, is known as it."""
        self.old.add(old.owner.operation)
        back = _inverse(order)
        if back == tuple(range(len(back))):
            old.replace_all_uses_with(new)
            return
        turned = hlo.transpose(new, list(back))
        old.replace_all_uses_with(turned)
        self.sources[turned] = (new, back)

    # --- operations -----------------------------------------------------------------------------

    def _call(self, op: ir.Operation) -> None:
        attributes = _attributes(op)
        operand_orders, result_orders = (_orders(attributes[name]) for name in _LAYOUTS)
        operand_turns = [order if _is_image(order) else None for order in operand_orders]
        result_turns = [order if _is_image(order) else None for order in result_orders]
        for name, orders, turns in zip(
            _LAYOUTS, (operand_orders, result_orders), (operand_turns, result_turns), strict=True
        ):
            kept = [
                tuple(range(len(order))) if turn else order
                for order, turn in zip(orders, turns, strict=True)
            ]
            attributes[name] = _layouts(kept)
        if _target(op) == _CONVOLUTION:
            attributes["backend_config"] = _channels_last_config(attributes["backend_config"])
        with ir.InsertionPoint(op), op.location:
            operands = [
                self._ordered(value, turn) if turn else value
                for value, turn in zip(op.operands, operand_turns, strict=True)
            ]
            types = [
                _turned_type(result, turn) if turn else result.type
                for result, turn in zip(op.results, result_turns, strict=True)
            ]
            new = ir.Operation.create(op.name, types, operands, attributes)
            for old, result, turn in zip(op.results, new.results, result_turns, strict=True):
                self._replace(old, result, turn or tuple(range(len(old.type.shape))))

    def _elementwise(self, op: ir.Operation, permutation: Order) -> None:
        order = _inverse(permutation)
        operands = [self._ordered(v, order) if v.type.rank else v for v in op.operands]
        self._rewrite(op, operands, order, {})

    def _window(self, op: ir.Operation, permutation: Order) -> None:
        order = _inverse(permutation)
        operands = [self._ordered(v, order) if v.type.rank else v for v in op.operands]
        attributes = _attributes(op)
        changed: dict[str, ir.Attribute] = {}
        for name in _BY_DIMENSION[op.name]:
            if name in attributes:
                numbers = list(ir.DenseI64ArrayAttr(attributes[name]))
                changed[name] = ir.DenseI64ArrayAttr.get([numbers[dim] for dim in order])
        if "padding" in attributes:
            pairs = np.array(ir.DenseIntElementsAttr(attributes["padding"])).reshape(-1, 2)
            pairs = np.ascontiguousarray(pairs[list(order)], dtype=np.int64)
            changed["padding"] = ir.DenseIntElementsAttr.get(pairs)
        self._rewrite(op, operands, order, changed)

    def _concatenate(self, op: ir.Operation, permutation: Order) -> None:
        order = _inverse(permutation)
        dim = order.index(ir.IntegerAttr(op.attributes["dimension"]).value)
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        operands = [self._ordered(v, order) for v in op.operands]
        self._rewrite(op, operands, order, {"dimension": number})

    def _reverse(self, op: ir.Operation, permutation: Order) -> None:
        order = _inverse(permutation)
        dims = [order.index(dim) for dim in ir.DenseI64ArrayAttr(op.attributes["dimensions"])]
        operands = [self._ordered(v, order) for v in op.operands]
        self._rewrite(op, operands, order, {"dimensions": ir.DenseI64ArrayAttr.get(dims)})

    def _reduce(self, op: ir.Operation, permutation: Order) -> None:
        if len(op.operands) != 2:
            return
        dims = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
        kept = [dim for dim in range(len(permutation)) if dim not in dims]
        order = tuple(np.argsort([permutation[dim] for dim in kept], kind="stable").tolist())
        x = self._ordered(op.operands[0], _inverse(permutation))
        over = sorted(permutation[dim] for dim in dims)
        x, over = _some_rows_first(op, x, over)
        changed: dict[str, ir.Attribute] = {"dimensions": ir.DenseI64ArrayAttr.get(over)}
        self._rewrite(op, [x, op.operands[1]], order, changed)

    def _transpose(self, op: ir.Operation, permutation: Order) -> None:
        source, permutation = self.sources[op.operands[0]]
        turned = list(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
        self._replace(op.results[0], source, _inverse([permutation[dim] for dim in turned]))

    def _reshape(self, op: ir.Operation, permutation: Order) -> None:
        """Dimensions are split, or merged where they are neighbours in the source too."""
        source, permutation = self.sources[op.operands[0]]
        groups = _groups(list(op.operands[0].type.shape), list(op.results[0].type.shape))
        places = [[permutation[dim] for dim in dims] for dims, _ in groups]
        apart = any(there != list(range(there[0], there[0] + len(there))) for there in places)
        if apart or not groups:
            return
        by_place = sorted(range(len(places)), key=places.__getitem__)
        order = tuple(dim for number in by_place for dim in groups[number][1])
        new = hlo.reshape(_turned_type(op.results[0], order), source)
        self._replace(op.results[0], new, order)

    def _rewrite(
        self,
        op: ir.Operation,
        operands: Sequence[Value],
        order: Order,
        changed: dict[str, ir.Attribute],
    ) -> None:
        """The same operation on these operands, whose result has its dimensions in this order."""
        (result,) = op.results
        attributes = {**_attributes(op), **changed}
        types = [_turned_type(result, order)]
        new = ir.Operation.create(op.name, types, operands, attributes, regions=len(op.regions))
        for old_region, region in zip(op.regions, new.regions, strict=True):
            for block in list(old_region.blocks):
                block.append_to(region)  # the operation itself goes out at the end
        self._replace(result, new.results[0], order)


# XLA:CPU reduces dimensions larger than this by windows of this size.
_TREE = 32
_LAYOUTS = ("operand_layouts", "result_layouts")


def _source(value: Value) -> tuple[Value, Order]:
    """What a value is the transpose of, which may be itself, and the permutation."""
    op = value.owner
    if getattr(op, "name", None) == "stablehlo.transpose":
        return op.operands[0], tuple(ir.DenseI64ArrayAttr(op.attributes["permutation"]))
    return value, tuple(range(len(value.type.shape)))


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    named = [op.attributes[index] for index in range(len(op.attributes))]
    return {attribute.name: attribute.attr for attribute in named}


def _target(op: ir.Operation) -> str:
    return ir.StringAttr(op.attributes["call_target_name"]).value


def _has_images(op: ir.Operation) -> bool:
    if _target(op) not in _CALLS or "result_layouts" not in op.attributes:
        return False
    orders = [order for name in _LAYOUTS for order in _orders(op.attributes[name])]
    return any(map(_is_image, orders))


def _is_image(order: Order) -> bool:
    """Whether dimensions in memory are those of an image with the channels innermost."""
    return len(order) > 2 and order == (0, *range(2, len(order)), 1)


def _orders(layouts: ir.Attribute) -> list[Order]:
    """Layouts, as dimensions from the outermost in memory to the innermost."""
    minor_first = (list(ir.DenseIntElementsAttr(a)) for a in ir.ArrayAttr(layouts))
    return [tuple(reversed(layout)) for layout in minor_first]


def _layouts(orders: Sequence[Order]) -> ir.Attribute:
    index = ir.IndexType.get()
    arrays = [np.asarray(order[::-1], dtype=np.int64) for order in orders]
    return ir.ArrayAttr.get([ir.DenseIntElementsAttr.get(a, type=index) for a in arrays])


def _channels_last_config(config: ir.Attribute) -> ir.Attribute:
    """OneDNN's configuration, told where the dimensions are now."""
    given: Any = json.loads(ir.StringAttr(config).value)
    convolution = given["onednn_conv_config"]
    rank = int(convolution["dims"])
    spatial = [str(dim) for dim in range(1, rank - 1)]
    data = {"batch_dim": "0", "feature_dim": str(rank - 1), "spatial_dims": spatial}
    convolution["input"] = convolution["output"] = {"data": data}
    return ir.StringAttr.get(json.dumps(given))


def _some_rows_first(op: ir.Operation, x: Value, over: list[int]) -> tuple[Value, list[int]]:
    """Where places of an image are reduced, reduce some of them; what is left to be reduced.

    XLA:CPU reads column after column else, and many rows are faster read row after row.
    """
    shape = list(x.type.shape)
    first, last = over[0], over[-1]
    if over != list(range(first, len(shape) - 1)) or not shape[-1]:
        return x, over
    rows = math.prod(shape[first : last + 1])
    some = next((n for n in range(_TREE, 1, -1) if rows % n == 0 and rows // n > _TREE), 1)
    if some == 1:
        return x, over
    element = x.type.element_type
    split = [*shape[:first], rows // some, some, shape[-1]]
    x = hlo.reshape(ir.RankedTensorType.get(split, element), x)
    left = ir.RankedTensorType.get([*shape[:first], rows // some, shape[-1]], element)
    changed = {"dimensions": ir.DenseI64ArrayAttr.get([first + 1])}
    part = ir.Operation.create(
        op.name, [left], [x, op.operands[1]], {**_attributes(op), **changed}, regions=1
    )
    copy = op.clone(ir.InsertionPoint(op))
    (block,) = copy.regions[0].blocks
    block.append_to(part.regions[0])
    copy.erase()
    return hlo.optimization_barrier([part.results[0]]), [first]


def _turned_type(value: Value, order: Order) -> ir.Type:
    shape = value.type.shape
    return ir.RankedTensorType.get([shape[dim] for dim in order], value.type.element_type)


def _inverse(order: Sequence[int]) -> Order:
    return tuple(order.index(place) for place in range(len(order)))


def _broadcast(op: ir.Operation, order: Order) -> Value:
    """A broadcast to a result with its dimensions in another order."""
    (source,) = op.operands
    dims = [order.index(d) for d in ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"])]
    if dims != sorted(dims):
        by_place = sorted(range(len(dims)), key=dims.__getitem__)
        source, dims = hlo.transpose(source, by_place), sorted(dims)
    return hlo.broadcast_in_dim(_turned_type(op.results[0], order), source, dims)


def _groups(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]]:
    """Which dimensions of a reshape become which: the smallest runs that have as many elements.

    None are found where there are no elements, or dimensions of size 1 that belong nowhere.
    """
    if 0 in old:
        return []
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = [i] if i < len(old) else [], [j] if j < len(new) else []
        i, j = i + 1, j + 1
        if not before or not after:
            return []
        while (have := math.prod(old[d] for d in before)) != (
            want := math.prod(new[d] for d in after)
        ):
            if have < want:
                before.append(i)
                i += 1
            else:
                after.append(j)
                j += 1
        groups.append((before, after))
    return groups
