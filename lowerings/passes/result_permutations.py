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
from xla_dynamo.lowerings.passes.notes import Notes
from xla_dynamo.lowerings.target import Target

# An attribute of results, since a pass is given a module and its target, and nothing else.
_ANY_PERMUTATION = "xla_dynamo.any_permutation"


def allow_any_permutation(main: func.FuncOp, results: set[int]) -> None:
    """Mark these results of a function: the caller takes their dimensions in any permutation."""
    attributes = result_attributes(main)
    for index in results:
        attributes[index][_ANY_PERMUTATION] = ir.UnitAttr.get()
    set_result_attributes(main, attributes)


def choose_permutations(module: ir.Module, target: Target) -> Notes | None:
    """Return the source of each transpose that is a marked result of `main`.

    Assumes the marks of `allow_any_permutation`, and removes them.

    Returns:
        The permutation of each result that it changed, by the index of the result.
    """
    main = main_of(module)
    permutations: dict[int, tuple[int, ...]] = {}
    *_, last = main.entry_block.operations
    for index in _take_marks(main):
        value = last.operands[index]
        source, permutation = source_of(value)
        if source is not value:
            last.operands[index] = source
            permutations[index] = tuple(permutation)
    update_type(main)
    return Notes(permutations=permutations) if permutations else None


def remove_marks(module: ir.Module) -> None:
    """Remove the marks of `allow_any_permutation`, where nobody is to choose."""
    _take_marks(main_of(module))


def _take_marks(main: func.FuncOp) -> list[int]:
    """Remove the marks of a function; returns the indices of the results that had them."""
    attributes = result_attributes(main)
    found = [
        index
        for index, given in enumerate(attributes)
        if given.pop(_ANY_PERMUTATION, None) is not None
    ]
    set_result_attributes(main, attributes)
    return found
