"""Marks of named regions: exported programs have them as composites, others not at all."""

from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.table import Context, lowers


@lowers("xla.mark_tensor.default")
def mark_tensor(
    ctx: Context, x: Value, name: str, pos: int, id: str, is_input: bool, attr: str | None = None
) -> Value:
    return x
