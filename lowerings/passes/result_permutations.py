"""Results whose dimensions may be in any order come in the order that they were computed in.

A tensor that only the backward graph reads may lie in memory as it was computed, such as an image
with the channels last: then neither graph permutes it.
"""

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_dynamo.lowerings.builders.functions import (
    main_of,
    result_attributes,
    set_result_attributes,
    update_type,
)
from xla_dynamo.lowerings.builders.values import source_of
from xla_dynamo.lowerings.target import Target

_ANY_ORDER, _PERMUTATION = "xla_dynamo.any_order", "xla_dynamo.permutation"


def let_come_in_any_order(main: func.FuncOp, results: set[int]) -> None:
    """Note at these results of a function that their dimensions may be in any order."""
    attributes = result_attributes(main)
    for index in results:
        attributes[index][_ANY_ORDER] = ir.UnitAttr.get()
    set_result_attributes(main, attributes)


def choose_permutations(module: ir.Module, target: Target) -> None:
    """Return what a result is the transpose of, where the result may come in any order.

    Assumes the notes of `let_come_in_any_order`, and leaves others: see `take_permutations`.
    """
    main = main_of(module)
    attributes = result_attributes(main)
    *_, last = main.entry_block.operations
    for index, given in enumerate(attributes):
        if given.pop(_ANY_ORDER, None) is None:
            continue
        value = last.operands[index]
        source, permutation = source_of(value)
        if source is not value:
            last.operands[index] = source
            given[_PERMUTATION] = ir.DenseI64ArrayAttr.get(permutation)
    set_result_attributes(main, attributes)
    update_type(main)


def take_permutations(main: func.FuncOp) -> dict[int, list[int]]:
    """Take the notes off a function: by its index, how to permute a result that comes otherwise."""
    attributes = result_attributes(main)
    found = {
        index: list(ir.DenseI64ArrayAttr(given.pop(_PERMUTATION)))
        for index, given in enumerate(attributes)
        if _PERMUTATION in given
    }
    set_result_attributes(main, attributes)
    return found
