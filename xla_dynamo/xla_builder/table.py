"""The table of operations: the names that `mkop` takes to what writes them in StableHLO."""

from collections.abc import Callable
from typing import Any

# Takes the operands, and what an operation has beside them; None stands for what is not given.
Operation = Callable[..., Any]
OPERATIONS: dict[str, Operation] = {}


def operation(name: str) -> Callable[[Operation], Operation]:
    """Enter a function under a name."""

    def enter(function: Operation) -> Operation:
        OPERATIONS[name] = function
        return function

    return enter


@operation("Tuple")
def tuple_(*values: Any) -> tuple[Any, ...]:
    """The values together."""
    return values


@operation("GetTupleElement")
def get_tuple_element(values: tuple[Any, ...], index: int) -> Any:
    """An element of a tuple.

    Raises:
        TypeError: the operand is an array.
    """
    if not isinstance(values, tuple):
        raise TypeError("get_tuple_element of an array: only tuples have elements")
    return values[index]
