"""Custom calls of libraries, with operands and results in the layouts that the library wants."""

from collections.abc import Sequence
from typing import Any

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo as hlo

from xla_dynamo.lowerings.builders.dtypes import permuted_type, row_major_layout
from xla_dynamo.lowerings.builders.shapes import transpose
from xla_dynamo.lowerings.builders.values import Value
from xla_dynamo.torch_private import invert_perm

# The names under which `Context.libraries` has oneDNN, its kernels for bfloat16, and torch's.
ONEDNN, ONEDNN_BFLOAT16, TORCH = "onednn", "onednn_bfloat16", "torch"


def library_call(
    target: str,
    config: ir.Attribute,
    operands: Sequence[Value],
    permutations: Sequence[Sequence[int]],
    types: Sequence[ir.Type],
    result_permutations: Sequence[Sequence[int]],
    **attributes: Any,
) -> list[Value]:
    """The results of a call, of these types.

    Transposes before and behind the call make its operands and results row-major. They cancel each
    other and those of the model, where XLA would meet other layouts at the call by copies.

    Args:
        target: the name that XLA knows the function by.
        config: its configuration, in the form that it reads.
        operands: its operands.
        permutations: of each operand, the dimensions from the outermost in memory to the innermost.
        types: of the results.
        result_permutations: the same for the results.
        attributes: others of the operation.
    """
    given = [transpose(x, p) for x, p in zip(operands, permutations, strict=True)]
    made = [permuted_type(t, p) for t, p in zip(types, result_permutations, strict=True)]
    op = hlo.CustomCallOp(
        made,
        given,
        target,
        backend_config=config,
        operand_layouts=ir.ArrayAttr.get([row_major_layout(x.type) for x in given]),
        result_layouts=ir.ArrayAttr.get([row_major_layout(t) for t in made]),
        **attributes,
    )
    results = zip(op.results, result_permutations, strict=True)
    return [transpose(result, invert_perm(p)) for result, p in results]
