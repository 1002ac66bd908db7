"""Return the source of a transpose, for a result that the caller takes in any permutation.

A tensor that only the backward graph reads may lie in memory as it was computed, such as an image
with the channels last: then neither graph transposes it.
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

_ANY_PERMUTATION, _PERMUTATION = "xla_dynamo.any_permutation", "xla_dynamo.permutation"


def allow_any_permutation(main: func.FuncOp, results: set[int]) -> None:
    """Mark these results of a function: the caller takes their dimensions in any permutation."""
    attributes = result_attributes(main)
    for index in results:
        attributes[index][_ANY_PERMUTATION] = ir.UnitAttr.get()
    set_result_attributes(main, attributes)


def choose_permutations(module: ir.Module, target: Target) -> None:
    """Return the source of each transpose that is a marked result of `main`.

    Assumes the marks of `allow_any_permutation`, and removes them. Leaves the permutation of each
    result that it changed as an attribute of the result, for `take_permutations`.
    """
    main = main_of(module)
    attributes = result_attributes(main)
    *_, last = main.entry_block.operations
    for index, given in enumerate(attributes):
        if given.pop(_ANY_PERMUTATION, None) is None:
            continue
        value = last.operands[index]
        source, permutation = source_of(value)
        if source is not value:
            last.operands[index] = source
            given[_PERMUTATION] = ir.DenseI64ArrayAttr.get(permutation)
    set_result_attributes(main, attributes)
    update_type(main)


def take_permutations(main: func.FuncOp) -> dict[int, list[int]]:
    """Remove what `choose_permutations` left: by a result's index, how to transpose it back."""
    attributes = result_attributes(main)
    found = {
        index: list(ir.DenseI64ArrayAttr(given.pop(_PERMUTATION)))
        for index, given in enumerate(attributes)
        if _PERMUTATION in given
    }
    set_result_attributes(main, attributes)
    return found
