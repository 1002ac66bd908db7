"""Marks of named regions, which exported programs have as composites; elsewhere they say nothing."""

from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.lowerings.table import Context, lowers


@lowers("xla.mark_tensor.default")
def mark_tensor(
    ctx: Context, x: Value, name: str, pos: int, id: str, is_input: bool, attr: str = ""
) -> Value:
    return x
