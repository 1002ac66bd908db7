"""Names of StableHLO operations, as the sets that several passes and rules decide by."""

from jax.extend.mlir import ir


def call_target(op: ir.Operation) -> str | None:
    """The function that a custom call calls; None for another operation."""
    if op.name != "stablehlo.custom_call":
        return None
    return ir.StringAttr(op.attributes["call_target_name"]).value


def named(text: str, dialect: str = "stablehlo") -> frozenset[str]:
    """The full names of a dialect's operations, from a text with a blank between them."""
    return frozenset(f"{dialect}.{name}" for name in text.split())


# Each element of the result is computed from the elements of the operands at the same index.
ELEMENTWISE = named(
    "abs add and atan2 cbrt ceil clamp compare convert cosine divide exponential "
    "exponential_minus_one floor is_finite log log_plus_one logistic maximum minimum multiply "
    "negate not or power remainder round_nearest_afz round_nearest_even rsqrt select sign sine "
    "sqrt subtract tan tanh xor"
) | named("erf erfc erf_inv square", "chlo")
# The result has the operand's elements in the same row-major order, some of them repeatedly.
RESHAPES = named("broadcast_in_dim reshape")
# The result has elements of the operand at other indices.
PERMUTATIONS = named("reverse slice transpose")
# The result has elements of its one operand, and nothing else.
VIEWS = RESHAPES | PERMUTATIONS
REDUCTIONS = named("reduce reduce_window")
SUMS = named("add subtract")
