"""Rule of bounded programs: the kernel that is called before sizes are bounded.

Other kernels are called later, in the place of operations whose rules are here.
"""

from jax.extend.mlir import ir

from xla_dynamo.lowerings.bounded.alignment import Row
from xla_dynamo.lowerings.bounded.context import BoundedContext, allow, bounds
from xla_dynamo.lowerings.bounded.extents import Refused
from xla_dynamo.lowerings.builders import build
from xla_dynamo.lowerings.builders.operation_names import call_target

# Of the operands of a call of paged attention: the queries, as large as the result, and where the
# tokens of each request begin.
_QUERIES, _STARTS = 0, 5


@bounds("stablehlo.custom_call")
def kernel_call(ctx: BoundedContext, row: Row) -> None:
    """Paged attention reads what belongs to requests, so there must be no others.

    A request that is not there begins and ends at 0, and has no tokens.
    """
    if _kernel_of(row.op) != "paged_attention":
        raise Refused(f"it calls {call_target(row.op)}, which is not followed")
    allow(row, "backend_config")  # sizes that the operands have, too
    starts = row.op.operands[_STARTS]
    zero = build.scalar(0, build.dtype_of(starts))
    row.op.operands[_STARTS] = ctx.masks.masked(starts, {0: ctx.operand(row, _STARTS)[0]}, zero)
    ctx.dims[row.op.results[0]] = ctx.operand(row, _QUERIES)


def _kernel_of(op: ir.Operation) -> str:
    """The name of the kernel of a custom call, "" if it is of none."""
    config = op.attributes.get("backend_config")
    if not isinstance(config, ir.DictAttr) or "kernel" not in config:
        return ""
    return ir.StringAttr(config["kernel"]).value.partition(":")[0]
