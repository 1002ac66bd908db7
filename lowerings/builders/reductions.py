"""What operations that reduce compute, and whether the number they begin with may come twice."""

from jax.extend.mlir import ir

from xla_dynamo.lowerings.builders.operation_names import named
from xla_dynamo.lowerings.builders.values import Value, splat_of

# These select one of their operands.
SELECTIONS = named("and maximum minimum or")
_NEUTRAL = {"stablehlo.add": 0, "stablehlo.multiply": 1, "stablehlo.xor": 0}


def names_in_body(op: ir.Operation) -> list[str]:
    """The names of the operations in the body of a reduction, in their order."""
    return [inner.operation.name for inner in op.regions[0].blocks[0].operations]


def reduction_of(op: ir.Operation) -> str:
    """The name of the one operation that reduces two numbers; "" if there are more."""
    first, *others = names_in_body(op)
    return first if len(others) == 1 else ""


def is_neutral(start: Value, reduction: str) -> bool:
    """Whether a reduction may begin with a number any number of times."""
    if reduction in SELECTIONS:
        return True
    number = splat_of(start)
    return number is not None and _NEUTRAL.get(reduction) == number.value
